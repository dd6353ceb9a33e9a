"""Where bodies run: threads, one event loop, subprocesses."""
