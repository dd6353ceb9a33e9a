"""Programs for the development of duly."""
