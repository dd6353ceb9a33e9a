"""When the garbage collector of a process of duly's own looks for garbage."""

import gc

_LOADED_OBJECTS = 100_000
"""So many may gather while modules are loaded: they stay, and looking at them costs a tenth of the
whole start."""
_YOUNG_OBJECTS = 10_000
"""So many may gather before the garbage collector looks at them. A batch of claims is some 3,000
on its way through, which go with it and are no garbage: by default the collector would look at
them twice per batch, in vain."""


def collect_rarely() -> None:
    """Let the garbage collector wait until everything is loaded."""
    gc.set_threshold(_LOADED_OBJECTS, *gc.get_threshold()[1:])


def collect_less() -> None:
    """Let it look again, now and then; what the application has set for it stays as it is."""
    # All that was loaded stays: the garbage collector need not look at it over and over.
    gc.freeze()
    if gc.get_threshold()[0] == _LOADED_OBJECTS:
        gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])


def collect_no_more() -> None:
    """Let the process end: the interpreter would look at all that it loaded once more."""
    gc.freeze()
