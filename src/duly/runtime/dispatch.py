"""From a claim in hand to the runner that runs it, or straight to its end."""

from duly.runtime.attempt import turned_away
from duly.runtime.hand import LOOP, THREAD, Hand, Held
from duly.runtime.report import Ended
from duly.runtime.runners.event_loop import EventLoopRunner
from duly.runtime.runners.thread import ThreadRunner
from duly.runtime.settler import Settler


class Dispatcher:
    """Settles what may not begin and gives the rest to the runners."""

    def __init__(
        self, hand: Hand, settler: Settler, on_loop: EventLoopRunner, on_threads: ThreadRunner
    ) -> None:
        self._hand = hand
        self._settler = settler
        self._on_loop = on_loop
        self._on_threads = on_threads

    def dispatch(self, taken: list[Held]) -> None:
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

    def _admitted(self, taken: list[Held]) -> list[Held]:
        asking = [held for held in taken if held.definition.admit is not None]
        if not asking:
            return taken
        outcomes = [(held, turned_away(held.definition, held.claim)) for held in asking]
        ended = [Ended(held, outcome, 0.0) for held, outcome in outcomes if outcome is not None]
        if not ended:
            return taken
        gone = {item.held.claim.run_id for item in ended}
        self._hand.withdraw(lambda held: held.claim.run_id in gone)
        self._settler.report(ended)
        return [held for held in taken if held.claim.run_id not in gone]
