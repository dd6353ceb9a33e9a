"""The store's migrations, as Django runs them."""
