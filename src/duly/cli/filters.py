"""The filter options of commands on many runs."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

import click

from duly.api.runs import Filter
from duly.cli.option_types import TimeSource, instant_since, since, tag
from duly.core.amounts import instant
from duly.core.key import check_storable
from duly.core.states import DEAD, State
from duly.limits import PAGE, PAGE_DEFAULT
from duly.store.reads import DeadLetterFilter

F = TypeVar("F", bound=Callable[..., Any])


class Filters(NamedTuple):
    """The filters as given on the command line."""

    state: tuple[str, ...] = ()
    task: str | None = None
    queue: str | None = None
    tag: tuple[str, str] | None = None
    since: datetime | timedelta | None = None
    fingerprint: str | None = None
    engine: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the filters select everything."""
        return self == Filters()

    def resolve(self, clock: TimeSource) -> Filter:
        """Return the filters as the application's `Filter`."""
        state = list(self.state) or None
        since = instant_since(clock, self.since)
        return Filter(state, self.task, self.queue, self.tag, since, self.fingerprint)

    def engine_letters(self, clock: TimeSource) -> DeadLetterFilter | None:
        """Return the filter for dead letters of other engines, or None if only runs can match."""
        if self._is_about_runs:
            return None
        for what in ("task", "engine", "fingerprint"):
            text = getattr(self, what)
            if text is not None:
                check_storable(what, text)
        since = instant_since(clock, self.since)
        made_since = None if since is None else instant("since", since)
        return DeadLetterFilter(
            engine=self.engine, task=self.task, since=made_since, fingerprint=self.fingerprint
        )

    def check(self) -> None:
        """Raise a usage error for a combination that matches nothing."""
        if self.engine is not None and self._is_about_runs:
            raise click.UsageError(
                "--engine selects dead letters of other engines; --state, --queue and --tag select "
                "runs"
            )

    @property
    def _is_about_runs(self) -> bool:
        return bool(self.state or self.queue or self.tag)


def run_filters(function: F) -> F:
    """Add the filter options for runs."""
    return _add(function, _state([state.value for state in State]), _TASK, _QUEUE, _TAG, _SINCE)


def dead_filters(function: F) -> F:
    """Add the filter options for dead letters."""
    states = _state(sorted(state.value for state in DEAD))
    return _add(function, states, _TASK, _QUEUE, _TAG, _SINCE, _FINGERPRINT, _ENGINE)


def group_filters(function: F) -> F:
    """Add the filter options for groups of dead letters."""
    return _add(function, _TASK, _QUEUE, _SINCE, _ENGINE)


def page_options(function: F) -> F:
    """Add the options to page through a list."""
    return _add(function, LIMIT, _CURSOR)


def _add(function: F, *options: Callable[[F], F]) -> F:
    for option in reversed(options):
        function = option(function)
    return function


def _state(names: list[str]) -> Callable[[F], F]:
    return click.option(
        "--state",
        multiple=True,
        type=click.Choice(names),
        help="Runs in this state; may be repeated.",
    )


_TASK = click.option("--task", help="Runs of this task, by its full name.")
_QUEUE = click.option("--queue", help="Runs of this queue.")
_TAG = click.option("--tag", type=tag, metavar="NAME=VALUE", help="Runs with this tag.")
_SINCE = click.option(
    "--since", type=since, help="Runs created since: 1h, 24h, 7d, or an ISO 8601 time."
)
_FINGERPRINT = click.option(
    "--fingerprint", help="Runs with this error, as shown by `dead groups`."
)
_ENGINE = click.option("--engine", help="Only dead letters of this engine, such as celery.")
_CURSOR = click.option(
    "--cursor", help="Continue after this run; the end of a page shows its cursor."
)
LIMIT = click.option(
    "--limit",
    type=click.IntRange(1, PAGE),
    default=PAGE_DEFAULT,
    show_default=True,
    help="At most this many.",
)
