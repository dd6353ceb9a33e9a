"""Where runs live. `protocol` says what a store does; `sqlite` and `postgres` do it."""
