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
    """How often the run was claimed before. A message with an old number does nothing."""
    task: str
    queue: str
    priority: int


@dataclass(frozen=True, slots=True)
class ResendPolicy:
    """How often a run is sent if no worker claims it."""

    first_resend_after: float = RELAY_STALE_SECONDS
    """Seconds until it is sent again for the first time. Each later delay is twice as long."""
    max_sends: int | None = None
    """After this many sends without a claim, the run is a dead letter. None means no limit."""

    def __post_init__(self) -> None:
        """Raise BadOption for values that cannot work."""
        if not 1 <= self.first_resend_after <= DELAY_SECONDS:
            raise BadOption(
                f"first_resend_after must be from 1 to {DELAY_SECONDS} seconds, "
                f"not {self.first_resend_after!r}"
            )
        sends = self.max_sends
        if sends is not None and (type(sends) is not int or sends < 2):  # noqa: PLR2004 - named in the message
            raise BadOption(
                "max_sends must be a whole number of at least 2, since the first message may be "
                f"lost, or None for no limit, not {sends!r}"
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
    def resend_policy(self) -> ResendPolicy:
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
