"""Steps of a task: parts that run once, and waits that need no worker."""
