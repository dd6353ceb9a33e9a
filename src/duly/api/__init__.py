"""What `app.runs`, `app.dead`, `app.queues` and `app.workers` offer."""
