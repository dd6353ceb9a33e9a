"""How many tasks the processes of one `duly worker --max-tasks` may still begin."""

from collections.abc import Iterator


class TaskBudget:
    """What is left of a number of tasks, shared out among worker processes."""

    def __init__(self, most: int | None) -> None:
        self._left = most

    @property
    def is_spent(self) -> bool:
        """Whether a new process could begin no task."""
        return self._left is not None and self._left <= 0

    def missing(self, processes: int) -> Iterator[int]:
        """Count down the processes to start, as long as there are tasks for them."""
        for missing in range(processes, 0, -1):
            if self.is_spent:
                return
            yield missing

    def share(self, processes: int, *, one: bool = False) -> int | None:
        """Take the share of the first of so many new processes, or one task; None is no bound.

        While there is more than a task for each process, one is kept for a run that must run alone.
        """
        if self._left is None:
            return None
        found = 1 if one else -(-(self._left - (self._left > processes)) // processes)
        self._left -= found
        return found

    def give_back(self, share: int | None, used: int) -> None:
        """Take back what a process that has ended did not use of its share."""
        if self._left is not None and share is not None:
            self._left += max(0, share - used)
