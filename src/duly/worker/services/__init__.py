"""The services of a worker, one duty each: hints, maintenance, recovery, relay, write monitor."""
