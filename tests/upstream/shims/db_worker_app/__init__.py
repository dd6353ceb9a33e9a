"""An application of Django's that has the command `db_worker`."""
