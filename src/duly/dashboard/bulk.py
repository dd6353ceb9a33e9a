"""Acts on many runs: done in the background, looked at by their progress."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from duly.api.dead import Bulk, Progress
from duly.clock import new_id
from duly.errors import DulyError
from duly.limits import BULK_ACTS


@dataclass
class Job:
    """One act on many runs."""

    id: str
    title: str
    total: int
    actor: str
    done: int = 0
    skipped: int = 0
    is_over: bool = False
    error: str | None = None
    what: object = field(default=None, repr=False)

    @property
    def share(self) -> float:
        """How much of it is done, in hundredths."""
        if self.is_over and self.error is None:
            return 100.0
        return min(100.0, 100 * (self.done + self.skipped) / max(1, self.total))


class Jobs:
    """The acts of this process, the newest of them."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, job_id: str) -> Job | None:
        """Return one."""
        return self._jobs.get(job_id)

    def start(
        self, title: str, total: int, actor: str, what: object, act: Callable[[Progress], Bulk]
    ) -> Job:
        """Begin one; the same that is under way already is the one that is returned."""
        with self._lock:
            for job in self._jobs.values():
                if job.what == what and not job.is_over:
                    return job
            job = Job(new_id(), title, total, actor, what=what)
            self._jobs[job.id] = job
            while len(self._jobs) > BULK_ACTS:
                self._jobs.popitem(last=False)
        threading.Thread(target=_carry_out, args=(job, act), name="duly-bulk", daemon=True).start()
        return job


def _carry_out(job: Job, act: Callable[[Progress], Bulk]) -> None:
    def note(progress: Bulk) -> None:
        job.done, job.skipped = progress.done, progress.skipped

    try:
        note(act(note))
    except DulyError as error:
        job.error = str(error)
    finally:
        job.is_over = True
