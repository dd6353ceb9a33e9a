"""The outcome of killing the workers of another engine, and the defects found in it."""

from dataclasses import dataclass


@dataclass
class Killed:
    """Orders that were sent to guarded tasks, and processes that were killed meanwhile."""

    orders: int = 0
    kills: int = 0
    """Killed processes that had begun a task and not ended it."""
    strikes: int = 0
    """Killed processes that were running a task at that moment."""
    succeeded: int = 0
    success_without_completion: int = 0
    wrong_results: int = 0
    bodies_begun: int = 0
    bodies_ended: int = 0
    bodies_per_process: int = 1
    """All tasks of a process die with it."""
    letters: int = 0

    @property
    def broken(self) -> list[str]:
        """Return a sentence for each defect."""
        found = []
        if self.succeeded != self.orders:
            found.append(f"{self.orders - self.succeeded} of {self.orders} orders did not succeed")
        if self.success_without_completion:
            found.append(f"{self.success_without_completion} succeeded and were never completed")
        if self.wrong_results:
            found.append(f"{self.wrong_results} results are not those of the body")
        if self.letters:
            found.append(f"{self.letters} ended as dead letters")
        if self.bodies_begun > self.orders + self.bodies_per_process * self.strikes:
            found.append(f"{self.bodies_begun} bodies began for {self.orders} orders")
        if self.bodies_ended < self.orders:
            found.append(f"{self.bodies_ended} bodies ended for {self.orders} orders")
        return found
