"""Progress bars for long work, shown only on a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from duly.cli.session import CommandSession
from duly.cli.tables import stderr_console
from duly.core.escape import clean

Show = Callable[[int], None]
"""Receives the number of finished items."""


def is_interactive(session: CommandSession) -> bool:
    """Return whether a progress bar would be visible."""
    return not session.as_json and not session.quiet and stderr_console() is not None


@contextmanager
def bar(session: CommandSession, what: str, *, total: int | None = None) -> Iterator[Show]:
    """Show a bar during a block. Without a total it only shows activity."""
    console = stderr_console() if is_interactive(session) else None
    if console is None:
        yield lambda _: None
        return
    columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False), BarColumn()]
    if total is not None:
        columns.append(MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(clean(what), total=total)
        # More items may be added than the total at the start.
        yield lambda done: progress.update(
            task, completed=done, total=None if total is None else max(total, done)
        )
