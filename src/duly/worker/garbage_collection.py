"""When the garbage collector of a process of duly's own looks for garbage.

What is set here is for duly's own modules: an application is imported by a collector that is as
Python has it, and what it makes and leaves behind is collected as anywhere.
"""

import gc

_USUAL = gc.get_threshold()
"""As it was before anybody has set anything: programs import this module first."""
_LOADED_OBJECTS = 99_991
"""So many may gather while our modules are loaded: they stay, and looking at them costs a tenth of
the whole start. A number that nobody else would choose, since we know by it that it is ours."""
_YOUNG_OBJECTS = 10_000
"""So many may gather before the garbage collector looks at them. A batch of claims is some 3,000
on its way through, which go with it and are no garbage: by default the collector would look at
them twice per batch, in vain."""


def collect_rarely() -> None:
    """Let the garbage collector wait until all that is ours is loaded."""
    gc.set_threshold(_LOADED_OBJECTS, *_USUAL[1:])


def collect_as_usual() -> None:
    """Let it look again, as an application expects, if it was told to wait."""
    if gc.get_threshold()[0] == _LOADED_OBJECTS:
        # All that was loaded stays: the garbage collector need not look at it over and over, nor
        # when the process ends.
        gc.freeze()
        gc.set_threshold(*_USUAL)


def collect_less() -> None:
    """Let it look only now and then; what the application has set for it stays as it is."""
    collect_as_usual()
    if gc.get_threshold() == _USUAL:
        gc.set_threshold(_YOUNG_OBJECTS, *_USUAL[1:])
