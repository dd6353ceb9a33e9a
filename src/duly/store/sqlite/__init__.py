"""Runs in an SQLite file, for any number of processes on one machine."""
