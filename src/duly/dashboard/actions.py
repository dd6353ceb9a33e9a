"""Operator actions in the dashboard: submitted forms, recorded with the operator's name."""

import json
from collections.abc import Callable
from typing import Any

from starlette.datastructures import FormData
from starlette.requests import Request

from duly.dashboard.application_view import ApplicationView
from duly.dashboard.auth import Viewer
from duly.dashboard.bulk_actions import BulkActionForms, text_of
from duly.dashboard.form_fields import instant_of, limit_of, reschedule_of
from duly.dashboard.pages import PageContent, PageNotFound, PageRedirect
from duly.dashboard.pages.runs import UNCHANGED, describe, reschedule_form
from duly.errors import BadOption, DulyError, QueueFull

ActionHandler = Callable[["OperatorActions", Request, FormData, str], "PageRedirect | PageContent"]


class OperatorActions:
    """The actions of one dashboard. Long ones run in the background."""

    def __init__(self, view: ApplicationView) -> None:
        self.view = view
        self.bulk = BulkActionForms(view)

    # -- runs --

    def cancel(self, request: Request, form: FormData, who: str) -> PageRedirect:
        """Cancel a waiting run, or ask a running one to stop."""
        run_id = _run_id(request)
        self.view.operator.runs.cancel(run_id, actor=who, reason=text_of(form, "reason"))
        return PageRedirect(f"/runs/{run_id}")

    def reschedule(self, request: Request, form: FormData, who: str) -> PageRedirect | PageContent:
        """Change when, how urgently and in which queue a waiting run starts."""
        run_id = _run_id(request)
        given = {name: text_of(form, name) for name in UNCHANGED}
        try:
            changes = reschedule_of(given)._asdict()
            self.view.operator.runs.reschedule(run_id, **changes, actor=who, reason=given["reason"])
        except (BadOption, QueueFull) as error:
            return reschedule_form(self.view, run_id, given, str(error))
        return PageRedirect(f"/runs/{run_id}")

    def retry(self, request: Request, form: FormData, who: str) -> PageRedirect:
        """Queue a finished run again, optionally from one of its steps."""
        run_id = _run_id(request)
        step = text_of(form, "from_step") or None
        reason = text_of(form, "reason")
        self.view.operator.runs.retry(run_id, actor=who, reason=reason, from_step=step)
        return PageRedirect(f"/runs/{run_id}")

    def resolve(self, request: Request, form: FormData, who: str) -> PageRedirect | PageContent:
        """Record an operator's statement about the step that the run was interrupted in."""
        run_id = _run_id(request)
        given = {name: text_of(form, name) for name in ("step", "result", "reason")}
        try:
            done, result = _step_result(text_of(form, "happened"), given["result"])
            self.view.operator.runs.resolve(
                run_id,
                done=done,
                result=result,
                step=given["step"],
                actor=who,
                reason=given["reason"],
            )
        except BadOption as error:
            context = describe(self.view, run_id)
            return PageContent(
                "run.html", context | {"resolving": given | {"error": str(error)}}, 422
            )
        return PageRedirect(f"/runs/{run_id}")

    def discard(self, request: Request, form: FormData, who: str) -> PageRedirect:
        """End a dead letter as cancelled."""
        run_id = _run_id(request)
        self.view.operator.dead.discard(run_id, actor=who, reason=text_of(form, "reason"))
        return PageRedirect(f"/runs/{run_id}")

    def edit(self, request: Request, form: FormData, who: str) -> PageRedirect | PageContent:
        """Retry a run with other arguments, which must match the task's signature."""
        run_id = _run_id(request)
        run = self.view.operator.runs.get(run_id).record
        given = text_of(form, "arguments")
        try:
            if not self.view.can_edit(run):
                raise BadOption("the arguments of this run cannot be edited here: some are hidden")
            args, kwargs = _call(given)
            codec = self.view.tasks.get(run.task).codec
            arguments = codec.from_json(args, kwargs)
            reason = text_of(form, "reason")
            self.view.operator.runs.retry(run_id, actor=who, reason=reason, arguments=arguments)
        except DulyError as error:
            context = describe(self.view, run_id)
            return PageContent("edit.html", context | {"given": given, "error": str(error)}, 422)
        return PageRedirect(f"/runs/{run_id}")

    # -- queues and schedules --

    def queue(self, request: Request, form: FormData, who: str) -> PageRedirect:
        """Pause, resume or limit a queue."""
        name, reason = str(request.path_params["name"]), text_of(form, "reason")
        queues = self.view.operator.queues
        match str(request.path_params["verb"]):
            case "pause":
                queues.pause(name, actor=who, reason=reason)
            case "resume":
                queues.resume(name, actor=who, reason=reason)
            case "limit":
                queues.limit(name, limit_of(text_of(form, "limit")), actor=who, reason=reason)
            case _:
                raise PageNotFound("A queue can be paused, resumed and limited.")
        return PageRedirect("/queues")

    def schedule(self, request: Request, form: FormData, who: str) -> PageRedirect:
        """Pause, resume, run or backfill a schedule."""
        name, verb = str(request.path_params["name"]), str(request.path_params["verb"])
        schedules, reason = self.view.operator.schedules, text_of(form, "reason")
        match verb:
            case "pause":
                schedules.pause(name, actor=who, reason=reason)
            case "resume":
                schedules.resume(name, actor=who, reason=reason)
            case "run":
                run = schedules.run_now(name, actor=who, reason=reason)
                return PageRedirect(f"/runs/{run.id}")
            case "backfill":
                begin, end = (instant_of(each, text_of(form, each)) for each in ("from", "to"))
                schedules.backfill(name, begin, end, actor=who, reason=reason)
            case _:
                raise PageNotFound(f"A schedule does not support {verb}.")
        return PageRedirect(f"/schedules/{name}")


def actor_of(viewer: Viewer) -> str:
    """Return the name of a viewer for the audit."""
    return viewer.name


def _run_id(request: Request) -> str:
    return str(request.path_params["run_id"])


def _step_result(happened: str, result: str) -> tuple[bool, Any]:
    """Return whether a step is done, and its result."""
    if happened not in {"yes", "no"}:
        raise BadOption("say whether the step had its effect")
    if result and happened == "no":
        raise BadOption("a step that runs again returns its own result: leave the result empty")
    try:
        return happened == "yes", json.loads(result) if result else None
    except (ValueError, RecursionError) as error:
        raise BadOption(f"the result is not JSON: {error}") from None


def _call(text: str) -> tuple[list[Any], dict[str, Any]]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadOption(f"the arguments are not JSON: {error}") from None
    match data:
        case {"args": list() as args, "kwargs": dict() as kwargs, **rest} if not rest:
            return args, kwargs
        case {"args": list() as args, **rest} if not rest:
            return args, {}
        case {"kwargs": dict() as kwargs, **rest} if not rest:
            return [], kwargs
    raise BadOption('write {"args": […], "kwargs": {…}}, with one of the two or both')
