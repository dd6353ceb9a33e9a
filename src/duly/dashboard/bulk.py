"""Acts on many runs: done in the background, looked at by their progress."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from duly.api.bulk import Bulk, Progress
from duly.clock import new_id
from duly.errors import DulyError
from duly.limits import BULK_ACTS


class Asked(NamedTuple):
    """What somebody asked for."""

    title: str
    total: int
    actor: str
    what: object
    """Says which runs; equal for the same ones."""


@dataclass
class Job:
    """One act on many runs."""

    id: str
    asked: Asked
    ticket: str = ""
    """Names the form that it was asked for by; sent twice, it is one act."""
    done: int = 0
    skipped: int = 0
    refused: tuple[str, ...] = ()
    is_over: bool = False
    error: str | None = None

    @property
    def share(self) -> float:
        """How much of it is done, in hundredths."""
        if self.is_over and self.error is None:
            return 100.0
        return min(100.0, 100 * (self.done + self.skipped) / max(1, self.asked.total))


class Jobs:
    """The acts of this process, the newest of them."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, job_id: str) -> Job | None:
        """Return one."""
        return self._jobs.get(job_id)

    def start(self, asked: Asked, act: Callable[[Progress], Bulk], *, ticket: str = "") -> Job:
        """Begin one; the same that is under way, or was begun by the same form, is returned."""
        with self._lock:
            for job in self._jobs.values():
                if job.asked.what == asked.what and not job.is_over:
                    return job
                if ticket and job.ticket == ticket:
                    return job
            job = Job(new_id(), asked, ticket)
            self._jobs[job.id] = job
            while len(self._jobs) > BULK_ACTS:
                self._jobs.popitem(last=False)
        threading.Thread(target=_carry_out, args=(job, act), name="duly-bulk", daemon=True).start()
        return job


def _carry_out(job: Job, act: Callable[[Progress], Bulk]) -> None:
    def note(progress: Bulk) -> None:
        job.done, job.skipped, job.refused = progress

    try:
        note(act(note))
    except DulyError as error:
        job.error = str(error)
    except Exception as error:
        # People are told at once, and the log of the process has the rest.
        job.error = f"{type(error).__name__}: {error}"
        raise
    finally:
        job.is_over = True
