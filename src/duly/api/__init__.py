"""The classes of `app.runs`, `app.dead`, `app.queues`, `app.workers` and others."""
