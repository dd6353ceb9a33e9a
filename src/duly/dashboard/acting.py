"""What people do in the dashboard: forms that are sent, and recorded with who did it."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import FormData
from starlette.requests import Request

from duly.api.runs import Filter
from duly.core.states import DEAD
from duly.dashboard.auth import Viewer
from duly.dashboard.bulk import Jobs
from duly.dashboard.desk import Desk
from duly.dashboard.pages import Elsewhere, NothingHere, Shown
from duly.dashboard.pages.dead import group_filter
from duly.dashboard.pages.runs import describe
from duly.errors import BadOption, DulyError
from duly.limits import PAGE
from duly.store.protocol import RunFilter

Act = Callable[["Acts", Request, FormData, str], "Elsewhere | Shown"]
_DEAD = tuple(sorted(DEAD))


class Acts:
    """The acts of one dashboard; those that take long go on in the background."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.jobs = Jobs()

    # -- runs --

    def cancel(self, request: Request, form: FormData, who: str) -> Elsewhere:
        """Cancel a run that waits; ask one that runs to stop."""
        run_id = _run_id(request)
        self.desk.app.runs.cancel(run_id, actor=who, reason=_text(form, "reason"))
        return Elsewhere(f"/runs/{run_id}")

    def retry(self, request: Request, form: FormData, who: str) -> Elsewhere:
        """Queue a run again that has ended, perhaps from one of its steps."""
        run_id = _run_id(request)
        step = _text(form, "from_step") or None
        reason = _text(form, "reason")
        self.desk.app.runs.retry(run_id, actor=who, reason=reason, from_step=step)
        return Elsewhere(f"/runs/{run_id}")

    def discard(self, request: Request, form: FormData, who: str) -> Elsewhere:
        """End a dead letter as cancelled."""
        run_id = _run_id(request)
        self.desk.app.dead.discard(run_id, actor=who, reason=_text(form, "reason"))
        return Elsewhere(f"/runs/{run_id}")

    def edit(self, request: Request, form: FormData, who: str) -> Elsewhere | Shown:
        """Retry a run with other arguments, which its task's signature has to accept."""
        run_id = _run_id(request)
        run = self.desk.app.runs.get(run_id)
        given = _text(form, "arguments")
        try:
            if not self.desk.can_edit(run.record):
                raise BadOption("the arguments of this run cannot be edited here: some are hidden")
            args, kwargs = _call(given)
            codec = self.desk.app.registry.get(run.record.task).codec
            arguments = codec.from_json(args, kwargs)
            run.retry(actor=who, reason=_text(form, "reason"), arguments=arguments)
        except DulyError as error:
            context = describe(self.desk, run_id)
            return Shown("edit.html", context | {"given": given, "error": str(error)}, 422)
        return Elsewhere(f"/runs/{run_id}")

    # -- many runs --

    def confirm(self, request: Request, form: FormData, _who: str) -> Shown:
        """Ask once more, saying how many runs it is about."""
        verb, ids, which = self._chosen(request, form)
        total = len(ids) if ids else self._count(which)
        return Shown(
            "confirm.html",
            {
                "verb": verb,
                "ids": ids,
                "which": which,
                "total": total,
                "now": self.desk.store.now(),
            },
        )

    def act_on_many(self, request: Request, form: FormData, who: str) -> Elsewhere:
        """Retry or discard dead letters, in the background."""
        verb, ids, which = self._chosen(request, form)
        reason = _text(form, "reason")
        if verb == "discard" and not reason:
            raise BadOption("discarding needs a reason; it is kept with every run")
        total = len(ids) if ids else self._count(which)
        dead = self.desk.app.dead
        chosen: dict[str, Any] = {"run_ids": ids} if ids else {"which": _as_filter(which)}
        act = dead.retry if verb == "retry" else dead.discard
        job = self.jobs.start(
            f"{'Retrying' if verb == 'retry' else 'Discarding'} dead letters",
            total,
            who,
            (verb, tuple(ids), which),
            lambda progress: act(**chosen, actor=who, reason=reason, progress=progress),
        )
        return Elsewhere(f"/bulk/{job.id}")

    def _chosen(self, request: Request, form: FormData) -> tuple[str, list[str], RunFilter]:
        verb = _text(form, "verb")
        if verb not in {"retry", "discard"}:
            raise BadOption("dead letters can be retried or discarded")
        ids = [str(each) for each in form.getlist("id")][:PAGE]
        if not ids and not request.query_params.get("task"):
            raise NothingHere("Nothing was selected: tick some runs, or open a group.")
        return verb, ids, group_filter(request)._replace(before=None)

    def _count(self, which: RunFilter) -> int:
        groups = self.desk.store.list_dead_groups(RunFilter(task=which.task, limit=PAGE))
        return sum(one.count for one in groups if one.fingerprint == which.fingerprint)

    # -- queues and schedules --

    def queue(self, request: Request, form: FormData, who: str) -> Elsewhere:
        """Pause or resume a queue."""
        name, reason = str(request.path_params["name"]), _text(form, "reason")
        queues = self.desk.app.queues
        acts = {"pause": queues.pause, "resume": queues.resume}
        act = acts.get(str(request.path_params["verb"]))
        if act is None:
            raise NothingHere("A queue can be paused and resumed.")
        act(name, actor=who, reason=reason)
        return Elsewhere("/queues")

    def schedule(self, request: Request, form: FormData, who: str) -> Elsewhere:
        """Pause, resume, run or backfill a schedule."""
        name, verb = str(request.path_params["name"]), str(request.path_params["verb"])
        schedules, reason = self.desk.app.schedules, _text(form, "reason")
        match verb:
            case "pause":
                schedules.pause(name, actor=who, reason=reason)
            case "resume":
                schedules.resume(name, actor=who, reason=reason)
            case "run":
                return Elsewhere(f"/runs/{schedules.run_now(name, actor=who).id}")
            case "backfill":
                begin, end = _instant(form, "from"), _instant(form, "to")
                schedules.backfill(name, begin, end, actor=who)
            case _:
                raise NothingHere(f"A schedule cannot be told to {verb}.")
        return Elsewhere(f"/schedules/{name}")


def name_of(viewer: Viewer) -> str:
    """Return who acts, as acts are recorded."""
    return viewer.name


def _run_id(request: Request) -> str:
    return str(request.path_params["run_id"])


def _text(form: FormData, name: str) -> str:
    found = form.get(name, "")
    return found.strip() if isinstance(found, str) else ""


def _call(text: str) -> tuple[list[Any], dict[str, Any]]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadOption(f"that is not JSON: {error}") from None
    match data:
        case {"args": list() as args, "kwargs": dict() as kwargs, **rest} if not rest:
            return args, kwargs
        case {"args": list() as args, **rest} if not rest:
            return args, {}
        case {"kwargs": dict() as kwargs, **rest} if not rest:
            return [], kwargs
    raise BadOption('write {"args": […], "kwargs": {…}}, with one of the two or both')


def _instant(form: FormData, name: str) -> datetime:
    try:
        found = datetime.fromisoformat(_text(form, name))
    except ValueError:
        raise BadOption(f"{name} must be a date and a time, such as 2030-01-31T08:00") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _as_filter(which: RunFilter) -> Filter:
    return Filter(list(_DEAD), which.task, fingerprint=which.fingerprint)
