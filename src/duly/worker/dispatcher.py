"""From a claim in hand to the runner that runs it, or straight to its end."""

from duly.worker.attempt import admission_refusal
from duly.worker.ended_body import EndedBody
from duly.worker.inflight import LOOP, THREAD, InFlightClaim, InFlightClaims
from duly.worker.runners.event_loop import EventLoopRunner
from duly.worker.runners.thread import ThreadRunner
from duly.worker.settler import Settler


class Dispatcher:
    """Settles what may not begin and gives the rest to the runners."""

    def __init__(
        self,
        hand: InFlightClaims,
        settler: Settler,
        on_loop: EventLoopRunner,
        on_threads: ThreadRunner,
    ) -> None:
        self._hand = hand
        self._settler = settler
        self._on_loop = on_loop
        self._on_threads = on_threads

    def dispatch(self, taken: list[InFlightClaim]) -> None:
        """Begin what was claimed; never called on the loop of an application."""
        taken = self._admitted(taken)
        if not taken:
            return
        # What may not wait goes first.
        taken.sort(key=lambda held: not held.definition.hold)
        on_loop = [held for held in taken if held.kind == LOOP]
        if len(on_loop) == len(taken):
            self._on_loop.submit(taken)
            return
        if on_loop:
            self._on_loop.submit(on_loop)
        self._on_threads.submit([held for held in taken if held.kind == THREAD])

    def _admitted(self, taken: list[InFlightClaim]) -> list[InFlightClaim]:
        asking = [held for held in taken if held.definition.admit is not None]
        if not asking:
            return taken
        outcomes = [(held, admission_refusal(held.definition, held.claim)) for held in asking]
        ended = [EndedBody(held, outcome, 0.0) for held, outcome in outcomes if outcome is not None]
        if not ended:
            return taken
        gone = {item.held.claim.run_id for item in ended}
        self._hand.withdraw(lambda held: held.claim.run_id in gone)
        self._settler.report(ended)
        return [held for held in taken if held.claim.run_id not in gone]
