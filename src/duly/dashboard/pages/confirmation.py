"""Asks for confirmation and a reason before an operator action."""

from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import quote

from starlette.requests import Request

from duly.api.schedule_views import ScheduleView
from duly.core.record import QueueRecord
from duly.core.states import DEAD, FINAL, State
from duly.dashboard.application_view import ApplicationView
from duly.dashboard.form_fields import instant_of, limit_of
from duly.dashboard.formats import count
from duly.dashboard.pages import PageContent, PageNotFound
from duly.errors import BadOption, DulyError


class Confirmation(NamedTuple):
    """An operator action that needs confirmation."""

    page: str
    """The page that the action belongs to."""
    subject: str
    sentences: tuple[str, ...]
    """The consequences of the action."""
    fields: tuple[tuple[str, str], ...] = ()
    """The hidden fields of the form."""
    heading: str = ""
    button: str = ""
    """The texts of heading and button, if the default from verb and kind does not fit."""
    needs_reason: bool = False


FormValues = Mapping[str, str]
"""Other parameters of the action: a step, a limit, or a time span."""


def confirmation_page(view: ApplicationView, request: Request) -> PageContent:
    """Show the consequences of an action on one object, and ask for a reason."""
    given = request.query_params
    kind, verb, name = given.get("kind", ""), given.get("verb", ""), given.get("name", "")
    found = _CONFIRMATIONS.get((kind, verb))
    if found is None or "\0" in "".join(given.values()):
        raise PageNotFound("There is no such action.")
    asked = found(view, name, given)
    asked = asked._replace(
        heading=asked.heading or f"{verb.capitalize()} this {kind}",
        button=asked.button or f"{verb.capitalize()} the {kind}",
    )
    context = {
        "asked": asked,
        "kind": kind,
        "verb": verb,
        "here": asked.page,
        "place": f"/{asked.page}" + ("" if kind == "queue" else f"/{quote(name, safe='')}"),
        "action": f"/{asked.page}/{quote(name, safe='')}/{verb}",
        "now": view.store.now(),
    }
    return PageContent("ask.html", context)


def _cancel(view: ApplicationView, name: str, _given: FormValues) -> Confirmation:
    run = view.store.get_run(name)
    if run is None or run.state in FINAL:
        raise PageNotFound(
            f"Run {name} is not waiting or running any more: there is nothing to cancel."
        )
    follows = (
        "The run ends as cancelled and never starts."
        if run.state == State.QUEUED
        else "The task is asked to stop. Effects so far are not undone."
    )
    return Confirmation("runs", f"{run.task}, run {run.id}", (follows,))


def _retry(view: ApplicationView, name: str, given: FormValues) -> Confirmation:
    step = given.get("from_step") or None
    run = view.store.get_run(name)
    if run is None or run.state not in FINAL:
        raise PageNotFound(f"Run {name} has not ended: there is nothing to retry.")
    steps = {each.name for each in view.store.list_steps(run.id)}
    sentences = ["The run is queued again, with the same arguments."]
    if run.state == State.SUCCEEDED:
        sentences.append("The run succeeded: its effects will happen a second time.")
    if step is not None:
        sentences.append(
            f"Steps before {step} keep their results; {step} and later ones run again."
        )
    elif steps:
        sentences.append("Completed steps keep their results.")
    fields = () if step is None else (("from_step", step),)
    return Confirmation("runs", f"{run.task}, run {run.id}", tuple(sentences), fields)


def _discard(view: ApplicationView, name: str, _given: FormValues) -> Confirmation:
    run = view.store.get_run(name)
    if run is None or run.state not in DEAD:
        raise PageNotFound(f"Run {name} is not a dead letter: there is nothing to discard.")
    words = "The run ends as cancelled for good, and is no longer a dead letter."
    return Confirmation("runs", f"{run.task}, run {run.id}", (words,), needs_reason=True)


def _pause_queue(view: ApplicationView, name: str, _given: FormValues) -> Confirmation:
    queue = _queue(view, name)
    return Confirmation(
        "queues",
        name,
        (
            "Runs of this queue do not start until an operator resumes it, and new runs wait.",
            f"{count(queue.ready)} are ready now. {count(queue.running)} are running and continue.",
        ),
    )


def _resume_queue(view: ApplicationView, name: str, _given: FormValues) -> Confirmation:
    queue = _queue(view, name)
    waiting = queue.ready + queue.waiting
    words = "Workers start runs of this queue again at once."
    return Confirmation("queues", name, (words, f"{count(waiting)} are waiting in it."))


def _limit_queue(view: ApplicationView, name: str, given: FormValues) -> Confirmation:
    queue, text = _queue(view, name), given.get("limit", "").strip()
    limit = limit_of(text)
    if limit is None:
        allowed, button = "Any number of its runs may run at once.", "Lift the limit"
    else:
        runs = "run" if limit == 1 else "runs"
        allowed = f"At most {limit:,} runs of this queue may run at once, over all workers."
        button = f"Limit it to {limit:,} {runs}"
    before = "no limit" if queue.limit is None else f"a limit of {queue.limit:,}"
    now = f"It has {before} now, and {count(queue.running)} of its runs are running."
    heading = "Lift the limit of this queue" if limit is None else "Limit this queue"
    return Confirmation("queues", name, (allowed, now), (("limit", text),), heading, button)


def _pause_schedule(view: ApplicationView, name: str, _given: FormValues) -> Confirmation:
    _check_schedule(view, name)
    words = "The schedule does not fire until an operator resumes it. Its existing runs continue."
    return Confirmation("schedules", name, (words,))


def _resume_schedule(view: ApplicationView, name: str, _given: FormValues) -> Confirmation:
    _check_schedule(view, name)
    return Confirmation("schedules", name, ("The schedule fires again from now on.",))


def _run_schedule(view: ApplicationView, name: str, _given: FormValues) -> Confirmation:
    found = _check_schedule(view, name)
    words = [f"A run of {found.task} is enqueued at once, in addition to the due ones."]
    if found.state == "paused":
        words.append("The schedule stays paused.")
    heading = "Run this schedule now"
    return Confirmation("schedules", name, tuple(words), (), heading, "Run it now")


def _backfill_schedule(view: ApplicationView, name: str, given: FormValues) -> Confirmation:
    found = _check_schedule(view, name)
    texts = {each: given.get(each, "") for each in ("from", "to")}
    begin, end = (instant_of(each, text) for each, text in texts.items())
    if begin >= end:
        raise BadOption("from must be before to: there is nothing to backfill")
    span = " to before ".join(f"{each:%Y-%m-%d %H:%M} UTC" for each in (begin, end))
    words = f"Each of its instants from {span} that has not run yet gets a run of {found.task} now."
    fields = tuple(texts.items())
    return Confirmation(
        "schedules", name, (words,), fields, "Backfill this schedule", "Run missed instants"
    )


def _queue(view: ApplicationView, name: str) -> QueueRecord:
    for queue in view.store.list_queues():
        if queue.name == name:
            return queue
    return QueueRecord(name, paused=False, ready=0, waiting=0, running=0)


def _check_schedule(view: ApplicationView, name: str) -> ScheduleView:
    try:
        return view.schedules.get(name)
    except DulyError as error:
        raise PageNotFound(str(error)) from error


_CONFIRMATIONS: dict[
    tuple[str, str], Callable[[ApplicationView, str, FormValues], Confirmation]
] = {
    ("run", "cancel"): _cancel,
    ("run", "retry"): _retry,
    ("run", "discard"): _discard,
    ("queue", "limit"): _limit_queue,
    ("queue", "pause"): _pause_queue,
    ("queue", "resume"): _resume_queue,
    ("schedule", "backfill"): _backfill_schedule,
    ("schedule", "pause"): _pause_schedule,
    ("schedule", "resume"): _resume_schedule,
    ("schedule", "run"): _run_schedule,
}
