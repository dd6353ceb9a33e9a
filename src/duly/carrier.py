"""The interface of a carrier, which delivers runs to another engine's workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from duly.errors import BadOption
from duly.limits import DELAY_SECONDS, RELAY_STALE_SECONDS


class CarrierMessage(NamedTuple):
    """A message that an attempt at a run may start.

    A lost message is sent again. A duplicate does nothing.
    """

    run_id: str
    claim_number: int
    """How often the run was claimed before. The message can claim the run only while this holds."""
    task: str
    queue: str
    priority: int


@dataclass(frozen=True, slots=True)
class ResendPolicy:
    """How often a run is sent if no worker claims it."""

    stale_seconds: float = RELAY_STALE_SECONDS
    """Seconds until it is sent again for the first time. Each later delay is twice as long."""
    most: int | None = None
    """After this many sends without a claim, the run is a dead letter. None means no limit."""

    def __post_init__(self) -> None:
        """Raise BadOption for values that cannot work."""
        if not 1 <= self.stale_seconds <= DELAY_SECONDS:
            raise BadOption(
                f"stale_seconds must be from 1 to {DELAY_SECONDS}, not {self.stale_seconds!r}"
            )
        if self.most is not None and (type(self.most) is not int or self.most < 2):  # noqa: PLR2004 - named in the message
            raise BadOption(
                "most must be a whole number of at least 2, since the first message may be lost, "
                f"or None for no limit, not {self.most!r}"
            )


class CarrierSendFailed(Exception):
    """Messages about these runs may not have reached their engine. All others have."""

    def __init__(self, failed: dict[str, Exception]) -> None:
        first = next(iter(failed.values()))
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        super().__init__(f"{type(first).__name__}: {first}{more}")
        self.run_ids = tuple(failed)


class Carrier(Protocol):
    """An engine whose workers run tasks of duly: `@app.task(carrier=…)`."""

    @property
    def pace(self) -> ResendPolicy:
        """How often a run is sent that no worker claims. It is read again for every batch."""
        ...

    def attach(self, app: Any) -> None:  # noqa: ANN401 - the application, which is a layer above
        """Attach the application whose tasks name this carrier. Do nothing if called again."""
        ...

    def send(self, messages: Sequence[CarrierMessage]) -> None:
        """Send messages to the engine.

        Raise if a message may not have arrived. `CarrierSendFailed` names the runs of such
        messages.
        """
        ...
