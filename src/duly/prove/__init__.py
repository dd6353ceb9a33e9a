"""Fault injection: a workload whose effects can be counted, strikes against it, and a checker."""
