"""Writes docs/reference from the code: `python -m tools.reference`, or `make reference`.

The pages are committed, and a test checks that they are up to date. So readers of a checkout need
not build them, links to them work, and the diff of a commit shows what changes for users.
"""
