"""Acts on many runs: those that were ticked, a group of dead letters, or what a filter finds."""

from typing import NamedTuple

from starlette.datastructures import FormData
from starlette.requests import Request

from duly.api.bulk import Bulk, Progress
from duly.api.runs import Filter
from duly.clock import new_id
from duly.core.instants import moment
from duly.core.states import DEAD, FINAL, State
from duly.dashboard import searching
from duly.dashboard.bulk import Asked, Jobs
from duly.dashboard.desk import Desk
from duly.dashboard.pages import Elsewhere, Shown
from duly.dashboard.pages.dead import group_filter, group_of, window_of
from duly.dashboard.searching import Search
from duly.dashboard.words import count
from duly.errors import BadOption
from duly.limits import COUNT_CAP, PAGE
from duly.store.protocol import RunFilter

_DEAD = tuple(sorted(DEAD))
_LIVE = tuple(state.value for state in State if state not in FINAL)
_DOING = {"retry": "Retrying", "discard": "Discarding", "cancel": "Cancelling"}


class Chosen(NamedTuple):
    """What is to be done, and to which runs; one of three tells which."""

    verb: str
    ids: tuple[str, ...] = ()
    group: RunFilter | None = None
    window: str = "all"
    search: Search | None = None

    @property
    def what(self) -> object:
        """Return what is equal for the same act on the same runs."""
        place = None if self.group is None else (self.group.task, self.group.fingerprint)
        text = None if self.search is None else self.search.text
        return self.verb, self.ids, place, self.window, text

    @property
    def noun(self) -> str:
        """Say what they are."""
        return "run" if self.search or self.verb == "cancel" else "dead letter"


class Many:
    """Asks once more, and acts in the background."""

    def __init__(self, desk: Desk, jobs: Jobs) -> None:
        self._desk = desk
        self._jobs = jobs

    def confirm(self, request: Request, form: FormData, _who: str) -> Shown:
        """Ask once more, saying how many runs it is about."""
        chosen = self._chosen(request, form)
        total, is_all = self._count(chosen)
        words = count(total) if is_all or total > COUNT_CAP else f"{total:,}+"
        context = {"chosen": chosen, "total": total, "words": words, "ticket": new_id()}
        return Shown("confirm.html", context | {"now": self._desk.store.now()})

    def act(self, request: Request, form: FormData, who: str) -> Elsewhere:
        """Retry, discard or cancel, in the background."""
        chosen = self._chosen(request, form)
        reason = text_of(form, "reason")
        if chosen.verb == "discard" and not reason:
            raise BadOption("discarding needs a reason; it is kept with every run")
        title = f"{_DOING[chosen.verb]} {chosen.noun}s"
        asked = Asked(title, self._count(chosen)[0], who, chosen.what)
        job = self._jobs.start(
            asked,
            lambda progress: self._carry_out(chosen, who, reason, progress),
            ticket=text_of(form, "ticket"),
        )
        return Elsewhere(f"/bulk/{job.id}")

    def _carry_out(self, chosen: Chosen, who: str, reason: str, progress: Progress) -> Bulk:
        operator = self._desk.operator
        if chosen.search is not None:
            act = operator.runs.retry_each if chosen.verb == "retry" else operator.runs.cancel_each
            found = self._desk.every(chosen.search)
            return act(found, actor=who, reason=reason, progress=progress)
        if chosen.verb == "cancel":
            runs = (operator.runs.get(run_id).record for run_id in chosen.ids)
            return operator.runs.cancel_each(runs, actor=who, reason=reason, progress=progress)
        many = operator.dead.retry if chosen.verb == "retry" else operator.dead.discard
        if chosen.group is None:
            return many(list(chosen.ids), actor=who, reason=reason, progress=progress)
        since = None if chosen.group.since is None else moment(chosen.group.since)
        which = Filter(_DEAD, chosen.group.task, since=since, fingerprint=chosen.group.fingerprint)
        return many(which=which, actor=who, reason=reason, progress=progress)

    def _chosen(self, request: Request, form: FormData) -> Chosen:
        verb, scope = text_of(form, "verb"), text_of(form, "scope")
        if verb not in _DOING:
            raise BadOption("runs can be retried, discarded or cancelled")
        if scope == "group":
            if verb == "cancel":
                raise BadOption("dead letters have ended; they can be retried or discarded")
            window = window_of(request)
            group = group_filter(request, self._desk.store.now())._replace(before=None)
            return Chosen(verb, group=group, window=window)
        if scope == "matching":
            return Chosen(verb, search=self._search(verb, text_of(form, "q")))
        ids = tuple(str(each) for each in form.getlist("id"))[:PAGE]
        if not ids:
            raise BadOption("nothing was selected: go back and tick some runs, or take all of them")
        return Chosen(verb, ids)

    def _search(self, verb: str, text: str) -> Search:
        """Return what finds the runs of a filter to which that can be done."""
        search = searching.read(text, self._desk.store.now())
        if search.hints:
            # It would find more than was meant.
            raise BadOption(f"the filter is not understood: {search.hints[0]}")
        if verb == "discard":
            raise BadOption("dead letters are discarded by their groups, or ticked")
        able = FINAL if verb == "retry" else frozenset(_LIVE)
        asked = search.which.states or (_DEAD if verb == "retry" else _LIVE)
        states = tuple(state for state in asked if state in able)
        if not states:
            raise BadOption(f"no run that is {' or '.join(asked)} can be told to {verb}")
        return search._replace(which=search.which._replace(states=states))

    def _count(self, chosen: Chosen) -> tuple[int, bool]:
        """Return how many runs it is about, and whether these are all."""
        if chosen.search is not None:
            return self._desk.count(chosen.search)
        if chosen.group is not None:
            group = group_of(self._desk, chosen.group)
            return (0 if group is None else group.count), True
        return len(chosen.ids), True


def text_of(form: FormData, name: str) -> str:
    """Return a field of a form."""
    found = form.get(name, "")
    return found.strip() if isinstance(found, str) else ""
