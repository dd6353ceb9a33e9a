"""The scenarios: each strikes in its own way, and leaves the judgement to the checker."""
