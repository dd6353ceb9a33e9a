"""A project of a duly user, with its own tests that Django's runner or pytest runs."""
