"""Compares the speed of two commits of duly on one machine and one database server."""
