"""A project whose scheduled tasks django-tasks-db or Celery carries."""
