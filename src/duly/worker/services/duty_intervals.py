"""The intervals at which a worker tries to get a duty that one worker does for all."""

CONTINUATION_SECONDS = 0.01
"""The interval of a duty when this worker continues it: its last batch was full."""
SHORTER = 0.8
"""The interval of a duty as a part of the pause between two tries. It must be shorter: otherwise a
lone worker would try a little too early and skip every second time."""
