"""Operator actions on many runs: selected runs, a group of dead letters, or a filter's runs."""

import json
from typing import NamedTuple

from starlette.datastructures import FormData
from starlette.requests import Request

from duly.api.bulk_actions import BulkActionRequest, BulkPage
from duly.clock import MICROSECONDS, new_id
from duly.core.record import BulkAction
from duly.core.states import DEAD, FINAL, State
from duly.dashboard import search_query
from duly.dashboard.application_view import ApplicationView
from duly.dashboard.bulk_executor import BulkActionExecutor, refusals_of
from duly.dashboard.formats import count
from duly.dashboard.pages import PageContent, PageNotFound, PageRedirect
from duly.dashboard.pages.dead import group_filter, group_of, since_of, window_of
from duly.dashboard.search_query import Search
from duly.errors import BadOption
from duly.limits import BULK_LEASE_SECONDS, COUNT_CAP, PAGE
from duly.store.reads import RunFilter

_DEAD = tuple(sorted(DEAD))
_LIVE = tuple(state.value for state in State if state not in FINAL)
_DOING = {"retry": "Retrying", "discard": "Discarding", "cancel": "Cancelling"}


class BulkSelection(NamedTuple):
    """A bulk action and its runs. One of `ids`, `group` and `search` selects them."""

    verb: str
    ids: tuple[str, ...] = ()
    group: RunFilter | None = None
    window: str = "all"
    search: Search | None = None

    @property
    def noun(self) -> str:
        """The word for the selected runs."""
        return "run" if self.search or self.verb == "cancel" else "dead letter"

    @property
    def selection(self) -> str:
        """Return the selection as JSON: equal text for equal selections."""
        if self.search is not None:
            return json.dumps({"filter": self.search.text})
        if self.group is not None:
            group = {"task": self.group.task, "fingerprint": self.group.fingerprint}
            return json.dumps(group | {"window": self.window})
        return json.dumps({"ids": sorted(self.ids, reverse=True)})


class BulkActionForms:
    """Asks for confirmation, and starts bulk actions in the background."""

    def __init__(self, view: ApplicationView) -> None:
        self._view = view
        self.executor = BulkActionExecutor(view, self._next_page)

    def confirm(self, request: Request, form: FormData, _who: str) -> PageContent:
        """Ask for confirmation, with the number of runs."""
        chosen = self._read_selection(request, form)
        total, is_all = self._count(chosen)
        words = count(total) if is_all or total > COUNT_CAP else f"{total:,}+"
        context = {"chosen": chosen, "total": total, "words": words, "ticket": new_id()}
        return PageContent("confirm.html", context | {"now": self._view.store.now()})

    def act(self, request: Request, form: FormData, who: str) -> PageRedirect:
        """Retry, discard or cancel runs in the background."""
        chosen = self._read_selection(request, form)
        reason = text_of(form, "reason")
        if chosen.verb == "discard" and not reason:
            raise BadOption("discarding needs a reason, which is stored with every run")
        ticket = text_of(form, "ticket") or new_id()
        total = self._count(chosen)[0]
        asked = BulkActionRequest(
            ticket, chosen.verb, chosen.selection, total, chosen.noun, who, reason
        )
        return PageRedirect(f"/bulk/{self.executor.start(asked)}")

    def show(self, view: ApplicationView, request: Request) -> PageContent:
        """Show the progress of a bulk action."""
        act_id = str(request.path_params["act_id"])
        act = None if "\0" in act_id else view.store.get_bulk(act_id)
        if act is None:
            raise PageNotFound(
                "There is no such bulk action. It may have ended long ago: see the audit log."
            )
        chosen = self._read(act)
        now = view.store.now()
        context = {"act": act, "chosen": chosen, "refused": refusals_of(act), "now": now}
        is_silent = now - act.renewed_at > BULK_LEASE_SECONDS * MICROSECONDS
        title = f"{_DOING[act.verb]} {chosen.noun}s"
        here = "dead" if chosen.noun == "dead letter" else "runs"
        return PageContent(
            "bulk.html", context | {"title_": title, "is_silent": is_silent, "here": here}
        )

    def _next_page(self, act: BulkAction) -> BulkPage:
        """Return the next runs of a bulk action."""
        chosen = self._read(act)
        if chosen.ids:
            found = [self._view.store.get_run(run_id) for run_id in chosen.ids]
            runs = tuple(
                run
                for run in found
                if run is not None and (act.verb == "cancel" or run.state in DEAD)
            )
            return BulkPage(runs, None, len(chosen.ids) - len(runs), is_last=True)
        search = chosen.search or Search("", chosen.group or RunFilter())
        which = search.which._replace(before=act.reached)
        page, following = self._view.find(search._replace(which=which), PAGE)
        reached = following or (page[-1].id if page else act.reached)
        return BulkPage(tuple(page), reached, is_last=following is None)

    def _read(self, act: BulkAction) -> BulkSelection:
        """Return the selection of a bulk action as it was requested."""
        match json.loads(act.selection):
            case {"filter": text}:
                return BulkSelection(act.verb, search=self._search(act.verb, text, act.created_at))
            case {"task": task, "fingerprint": fingerprint, "window": window}:
                since = since_of(window, act.created_at)
                group = RunFilter(_DEAD, task, fingerprint=fingerprint, since=since)
                return BulkSelection(act.verb, group=group, window=window)
            case {"ids": ids}:
                return BulkSelection(act.verb, tuple(ids))
        raise BadOption(
            "this bulk action was started by another version of duly and cannot be read"
        )

    def _read_selection(self, request: Request, form: FormData) -> BulkSelection:
        verb, scope = text_of(form, "verb"), text_of(form, "scope")
        if verb not in _DOING:
            raise BadOption("runs can be retried, discarded or cancelled")
        if scope == "group":
            if verb == "cancel":
                raise BadOption("dead letters have ended; they can only be retried or discarded")
            window = window_of(request)
            group = group_filter(request, self._view.store.now())._replace(before=None)
            return BulkSelection(verb, group=group, window=window)
        if scope == "matching":
            now = self._view.store.now()
            return BulkSelection(verb, search=self._search(verb, text_of(form, "q"), now))
        ids = tuple(str(each) for each in form.getlist("id"))[:PAGE]
        if not ids:
            raise BadOption("nothing was selected: go back and select some runs or all runs")
        return BulkSelection(verb, ids)

    def _search(self, verb: str, text: str, now: int) -> Search:
        """Return the search for those runs of a filter that allow the action."""
        search = search_query.read(text, now)
        if search.hints:
            # A misunderstood filter would select more runs than intended.
            raise BadOption(f"the filter is not valid: {search.hints[0]}")
        if verb == "discard":
            raise BadOption("dead letters can be discarded only by group or by selection")
        able = FINAL if verb == "retry" else frozenset(_LIVE)
        asked = search.which.states or (_DEAD if verb == "retry" else _LIVE)
        states = tuple(state for state in asked if state in able)
        if not states:
            raise BadOption(f"no run that is {' or '.join(asked)} supports {verb}")
        return search._replace(which=search.which._replace(states=states))

    def _count(self, chosen: BulkSelection) -> tuple[int, bool]:
        """Return the number of selected runs, and whether that is all."""
        if chosen.search is not None:
            return self._view.count(chosen.search)
        if chosen.group is not None:
            group = group_of(self._view, chosen.group)
            return (0 if group is None else group.count), True
        return len(chosen.ids), True


def text_of(form: FormData, name: str) -> str:
    """Return a field of a form as text."""
    found = form.get(name, "")
    return found.strip() if isinstance(found, str) else ""
