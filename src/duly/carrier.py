"""What brings runs to another engine's workers, seen from below."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from duly.errors import BadOption
from duly.limits import DELAY_SECONDS, RELAY_STALE_SECONDS


class CarrierMessage(NamedTuple):
    """Says that an attempt at a run may begin. Lost, it is sent again; doubled, it does nothing."""

    run_id: str
    claim_number: int
    """How often the run was claimed before: only while that holds can the message claim it."""
    task: str
    queue: str
    priority: int


class ResendPolicy(NamedTuple):
    """How often a run is handed over that nobody claims."""

    stale_seconds: float = RELAY_STALE_SECONDS
    """After how long again, for the first time; then twice that, and so on."""
    most: int | None = None
    """How often in all, at least twice; without end if None. Then it ends as a dead letter."""


class CarrierSendFailed(Exception):
    """Messages about these runs may not have reached their engine; all others have."""

    def __init__(self, failed: dict[str, Exception]) -> None:
        first = next(iter(failed.values()))
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        super().__init__(f"{type(first).__name__}: {first}{more}")
        self.run_ids = tuple(failed)


def check_resend_policy(stale: float, most: int | None) -> ResendPolicy:
    """Return a pace that was asked for, or say why it cannot be one."""
    if not 1 <= stale <= DELAY_SECONDS:
        raise BadOption(f"stale must be from 1 second to {DELAY_SECONDS}, not {stale!r}")
    if most is not None and (type(most) is not int or most < 2):  # noqa: PLR2004 - as is said
        raise BadOption(
            "most must be a whole number of at least 2, since the first message may be lost, or "
            f"None for no limit, not {most!r}"
        )
    return ResendPolicy(stale, most)


class Carrier(Protocol):
    """An engine whose workers run tasks of ours."""

    @property
    def pace(self) -> ResendPolicy: ...

    def attach(self, app: Any) -> None:  # noqa: ANN401 - the application, which is a layer above
        """Get to know the application whose tasks name this carrier; said again, do nothing."""
        ...

    def send(self, messages: Sequence[CarrierMessage]) -> None:
        """Send messages to the engine.

        Raise if one may not have arrived; `CarrierSendFailed` names some that did not.
        """
        ...
