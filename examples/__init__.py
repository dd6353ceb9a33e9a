"""Programs that use duly, each run by a test."""
