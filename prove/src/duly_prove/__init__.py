"""Fault injection: a workload with countable effects, faults against its workers, and a checker."""
