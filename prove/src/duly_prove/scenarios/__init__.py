"""The scenarios. Each injects its own faults, and the checker evaluates the history."""
