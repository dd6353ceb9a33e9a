"""The package that the tests of django-tasks-db are in; its source distribution has none."""
