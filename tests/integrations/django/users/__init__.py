"""A project of a user of duly's, with tests of its own that Django's runner or pytest runs."""
