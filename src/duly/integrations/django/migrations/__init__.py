"""The store's migrations as Django migrations."""
