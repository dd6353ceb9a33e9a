"""A shop on Django whose tasks are kept by duly."""
