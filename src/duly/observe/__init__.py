"""Turns events into something to look at."""
