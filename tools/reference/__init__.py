"""Writes docs/reference from the code: `python -m tools.reference`, or `make reference`.

The pages are committed, and a test says whether they are up to date. So they can be read in a
checkout and be linked to without building anything, and a change of what users see shows in the
diff of the commit that makes it.
"""
