"""duly in the shape of other systems, and inside frameworks."""
