"""The interface of a carrier, which delivers runs to another engine's workers."""

from collections.abc import Sequence
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


class ResendPolicy(NamedTuple):
    """How often a run is handed over if no worker claims it."""

    stale_seconds: float = RELAY_STALE_SECONDS
    """Seconds until it is sent again for the first time. Each later delay is twice as long."""
    most: int | None = None
    """The maximum number, at least 2. After it, the run is a dead letter. None means no bound."""


class CarrierSendFailed(Exception):
    """Messages about these runs may not have reached their engine. All others have."""

    def __init__(self, failed: dict[str, Exception]) -> None:
        first = next(iter(failed.values()))
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        super().__init__(f"{type(first).__name__}: {first}{more}")
        self.run_ids = tuple(failed)


def check_resend_policy(stale: float, most: int | None) -> ResendPolicy:
    """Return the resend policy, or raise BadOption."""
    if not 1 <= stale <= DELAY_SECONDS:
        raise BadOption(f"stale must be from 1 second to {DELAY_SECONDS}, not {stale!r}")
    if most is not None and (type(most) is not int or most < 2):  # noqa: PLR2004 - named in the message
        raise BadOption(
            "most must be a whole number of at least 2, since the first message may be lost, or "
            f"None for no limit, not {most!r}"
        )
    return ResendPolicy(stale, most)


class Carrier(Protocol):
    """An engine whose workers run tasks of duly."""

    @property
    def pace(self) -> ResendPolicy: ...

    def attach(self, app: Any) -> None:  # noqa: ANN401 - the application, which is a layer above
        """Attach the application whose tasks name this carrier. Do nothing if called again."""
        ...

    def send(self, messages: Sequence[CarrierMessage]) -> None:
        """Send messages to the engine.

        Raise if a message may not have arrived. `CarrierSendFailed` names the runs of such
        messages.
        """
        ...
