"""Turns events into logs, metrics and traces."""
