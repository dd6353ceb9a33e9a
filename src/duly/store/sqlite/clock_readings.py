"""The clocks of a store on SQLite."""

from typing import NamedTuple

from duly.clock import Clock, boot_id


class ClockReadings(NamedTuple):
    """The wall time, for stored times, and the time since the boot, for leases."""

    now: int
    uptime: int
    boot: str


def read_clocks(clock: Clock) -> ClockReadings:
    """Read both clocks."""
    return ClockReadings(clock.now(), clock.uptime(), boot_id().hex())
