"""Asking once more before somebody changes something, with room for a reason."""

from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote

from starlette.requests import Request

from duly.core.record import QueueRecord
from duly.core.states import FINAL, State
from duly.dashboard.desk import Desk
from duly.dashboard.pages import NothingHere, Shown
from duly.dashboard.words import count
from duly.errors import DulyError


class Asked(NamedTuple):
    """What somebody is about to do."""

    page: str
    """Which page it belongs to."""
    subject: str
    sentences: tuple[str, ...]
    """What follows from it."""
    fields: tuple[tuple[str, str], ...] = ()


def ask(desk: Desk, request: Request) -> Shown:
    """Say what follows from an act on one thing, and ask for a reason."""
    given = request.query_params
    kind, verb, name = given.get("kind", ""), given.get("verb", ""), given.get("name", "")
    found = _ASKS.get((kind, verb))
    if found is None or "\0" in name + given.get("from_step", ""):
        raise NothingHere("There is nothing of that kind to do.")
    asked = found(desk, name, given.get("from_step") or None)
    context = {
        "asked": asked,
        "kind": kind,
        "verb": verb,
        "here": asked.page,
        "place": f"/{asked.page}" + ("" if kind == "queue" else f"/{quote(name, safe='')}"),
        "action": f"/{asked.page}/{quote(name, safe='')}/{verb}",
        "now": desk.store.now(),
    }
    return Shown("ask.html", context)


def _cancel(desk: Desk, name: str, _step: str | None) -> Asked:
    run = desk.store.get_run(name)
    if run is None or run.state in FINAL:
        raise NothingHere(f"Run {name} does not wait or run any more: there is nothing to cancel.")
    follows = (
        "It ends as cancelled without being started."
        if run.state == State.QUEUED
        else "Its body is asked to stop. What it has done so far stays done."
    )
    return Asked("runs", f"{run.task}, run {run.id}", (follows,))


def _retry(desk: Desk, name: str, step: str | None) -> Asked:
    run = desk.store.get_run(name)
    if run is None or run.state not in FINAL:
        raise NothingHere(f"Run {name} has not ended: there is nothing to retry.")
    steps = {each.name for each in desk.store.list_steps(run.id)}
    sentences = ["It is queued again, with the same arguments."]
    if run.state == State.SUCCEEDED:
        sentences.append("It succeeded: what it did will be done a second time.")
    if step is not None:
        sentences.append(
            f"Steps before {step} keep their results; {step} and later ones run again."
        )
    elif steps:
        sentences.append("Steps that are done keep their results.")
    fields = () if step is None else (("from_step", step),)
    return Asked("runs", f"{run.task}, run {run.id}", tuple(sentences), fields)


def _pause_queue(desk: Desk, name: str, _step: str | None) -> Asked:
    queue = _queue(desk, name)
    return Asked(
        "queues",
        name,
        (
            "No worker starts a run of it until somebody resumes it, and new runs wait.",
            f"{count(queue.ready)} are ready now. {count(queue.running)} are running and continue.",
        ),
    )


def _resume_queue(desk: Desk, name: str, _step: str | None) -> Asked:
    queue = _queue(desk, name)
    waiting = queue.ready + queue.waiting
    words = "Workers start its runs again at once."
    return Asked("queues", name, (words, f"{count(waiting)} are waiting in it."))


def _pause_schedule(desk: Desk, name: str, _step: str | None) -> Asked:
    _check_schedule(desk, name)
    words = "It does not fire until somebody resumes it. Runs that it has made continue."
    return Asked("schedules", name, (words,))


def _resume_schedule(desk: Desk, name: str, _step: str | None) -> Asked:
    _check_schedule(desk, name)
    return Asked("schedules", name, ("It fires again from now on.",))


def _queue(desk: Desk, name: str) -> QueueRecord:
    for queue in desk.store.list_queues():
        if queue.name == name:
            return queue
    return QueueRecord(name, paused=False, ready=0, waiting=0, running=0)


def _check_schedule(desk: Desk, name: str) -> None:
    try:
        desk.schedules.get(name)
    except DulyError as error:
        raise NothingHere(str(error)) from error


_ASKS: dict[tuple[str, str], Callable[[Desk, str, str | None], Asked]] = {
    ("run", "cancel"): _cancel,
    ("run", "retry"): _retry,
    ("queue", "pause"): _pause_queue,
    ("queue", "resume"): _resume_queue,
    ("schedule", "pause"): _pause_schedule,
    ("schedule", "resume"): _resume_schedule,
}
