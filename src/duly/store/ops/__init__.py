"""Everything that a store can write: each op is a value, next to the type of its answer."""
