"""Faults against process trees, each with proof that it took effect."""

import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import NamedTuple

from duly.clock import monotonic
from duly_prove.freeze_workload import BEFORE_COMMIT, BEFORE_SETTLE, IN_CLAIM, freeze_flag
from duly_prove.history import Freeze
from duly_prove.process_tree import ProcessTree, WorkerChild, is_stopped, pause_for, wait_for
from duly_prove.processes import state_of

KILLED = -signal.SIGKILL
_SEEN_SECONDS = 5.0
_STOP_SECONDS = 0.5
_BUSY_SHARE = 0.85
_PLACES = {"settler": BEFORE_SETTLE, "committer": BEFORE_COMMIT, "claimer": IN_CLAIM}
_SUPERVISOR_FIRST_SHARE = 0.3
_ALL_SHARE = 0.5
_BETWEEN_SECONDS = 0.05
EMBEDDED = "embedded"
FREEZES = ("child", "supervisor", "both", "settler", "committer", "claimer", EMBEDDED)
"""The processes that freeze: one worker, only the supervisor, or a whole tree.

A whole tree freezes at a random moment ("both"), or with a worker right before it settles, inside a
transactional commit, or inside a claim. "embedded" is a program with a worker in it, right before
it settles. Half of the time, a whole tree includes the watchdog, which kills workers whose
supervisor is frozen or gone.
"""


class InjectedFault(NamedTuple):
    """A fault against a process, and whether it was seen to take effect."""

    kind: str
    target: str
    pid: int
    worker_id: str | None
    took_effect: bool


class ActiveFreeze(NamedTuple):
    """Processes of a tree that are frozen now."""

    tree: ProcessTree
    target: str
    children: tuple[WorkerChild, ...]
    helpers: tuple[int, ...]
    supervisor: bool
    stopped_at: float
    thaw_at: float
    flag: Path | None


def choose_child(tree: ProcessTree, random: Random) -> WorkerChild | None:
    """Return a registered worker process, usually one that runs a task."""
    children = [child for child in tree.children() if child.is_registered]
    busy = [child for child in children if child.is_busy]
    if busy and random.random() < _BUSY_SHARE:
        children = busy
    return random.choice(children) if children else None


def kill_child(tree: ProcessTree, child: WorkerChild) -> InjectedFault:
    """Send SIGKILL to one worker process. The supervisor ends its child processes."""
    sent = tree.signal_child(child, signal.SIGKILL)
    struck = sent and wait_for(lambda: is_gone(child.pid), _SEEN_SECONDS)
    return InjectedFault("kill", "child", child.pid, child.worker_id, struck)


def kill_tree(tree: ProcessTree) -> InjectedFault:
    """Send SIGKILL to the supervisor. Its workers must die with it."""
    children = tree.children()
    tree.signal_supervisor(signal.SIGKILL)
    status = tree.wait(_SEEN_SECONDS)
    gone = wait_for(lambda: all(is_gone(child.pid) for child in children), _SEEN_SECONDS)
    return InjectedFault("kill", "tree", tree.pid, None, status == KILLED and gone)


def freeze(tree: ProcessTree, target: str, seconds: float, random: Random) -> ActiveFreeze | None:
    """Freeze processes of a tree. Return None if they were not seen to stop."""
    children = tuple(child for child in tree.children() if child.is_registered)
    if target == "child":
        children = children[:1]
    elif target == "supervisor":
        children = ()
    if target != "supervisor" and not children:
        return None
    with_supervisor = target != "child"
    flag = None
    helpers: tuple[int, ...] = ()
    if with_supervisor and not _freeze_supervisor(tree):
        return None
    if with_supervisor and children and random.random() < _ALL_SHARE:
        helpers = tuple(tree.helpers())
        tree.signal_helpers(helpers, signal.SIGSTOP)
    if target in _PLACES:
        flag = _request_freeze(tree, _PLACES[target])
        wait_for(lambda: any(is_stopped(child.pid) for child in children), _STOP_SECONDS)
    stopped_at = monotonic()
    tree.signal_children(children, signal.SIGSTOP)
    wait_for(lambda: all(_is_still(child.pid) for child in children), _SEEN_SECONDS)
    children = tuple(child for child in children if is_stopped(child.pid))
    under_way = ActiveFreeze(
        tree, target, children, helpers, with_supervisor, stopped_at, stopped_at + seconds, flag
    )
    if target != "supervisor" and not children:
        thaw(under_way, random)
        return None
    return under_way


def freeze_embedded(program: ProcessTree, seconds: float) -> ActiveFreeze | None:
    """Let a program with an embedded worker stop before it settles. Return None if it did not."""
    flag = _request_freeze(program, BEFORE_SETTLE)
    if not wait_for(lambda: is_stopped(program.pid), _STOP_SECONDS):
        flag.unlink(missing_ok=True)
        # The program may have read the flag just before.
        program.signal_supervisor(signal.SIGCONT)
        return None
    now = monotonic()
    return ActiveFreeze(program, EMBEDDED, (), (), True, now, now + seconds, flag)  # noqa: FBT003


def thaw(under_way: ActiveFreeze, random: Random) -> tuple[InjectedFault, list[Freeze]]:
    """Continue the frozen processes, supervisor and workers in either order."""
    tree, children = under_way.tree, under_way.children
    if under_way.flag is not None:
        under_way.flag.unlink(missing_ok=True)
    pids = [child.pid for child in children] + ([tree.pid] if under_way.supervisor else [])
    continued_at = monotonic()
    supervisor_first = under_way.supervisor and random.random() < _SUPERVISOR_FIRST_SHARE
    if supervisor_first:
        tree.signal_supervisor(signal.SIGCONT)
        pause_for(random.uniform(0.0, _BETWEEN_SECONDS))
    tree.signal_children(children, signal.SIGCONT)
    tree.signal_helpers(under_way.helpers, signal.SIGCONT)
    if under_way.supervisor and not supervisor_first:
        pause_for(random.uniform(0.0, _BETWEEN_SECONDS))
        tree.signal_supervisor(signal.SIGCONT)
    worker_id = children[0].worker_id if children else None
    strike = InjectedFault(
        "freeze", under_way.target, pids[0] if pids else 0, worker_id, bool(pids)
    )
    return strike, [Freeze(pid, under_way.stopped_at, continued_at) for pid in pids]


def count(strikes: Iterable[InjectedFault]) -> dict[str, int]:
    """Return how many faults of each kind were seen to take effect."""
    found = Counter(f"{s.kind} {s.target}" for s in strikes if s.took_effect)
    return dict(sorted(found.items()))


def _request_freeze(tree: ProcessTree, where: str) -> Path:
    """Ask the workers of a tree to stop themselves at a certain place in the code."""
    flag = freeze_flag(tree.settings.folder, tree.pid)
    scratch = flag.with_suffix(".new")
    scratch.write_text(where)
    scratch.rename(flag)
    return flag


def _freeze_supervisor(tree: ProcessTree) -> bool:
    if not tree.signal_supervisor(signal.SIGSTOP):
        return False
    return wait_for(lambda: _is_still(tree.pid), _SEEN_SECONDS) and is_stopped(tree.pid)


def _is_still(pid: int) -> bool:
    return is_stopped(pid) or is_gone(pid)


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, reaped or not."""
    return state_of(pid) in {None, "Z", "X"}
