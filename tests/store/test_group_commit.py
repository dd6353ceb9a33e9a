"""Group commit: one caller writes at once, many share, nobody waits for who is gone."""

import functools
import itertools
import os
import random
import signal
import threading
from contextlib import closing, contextmanager

import pytest

from duly.errors import StoreError, StoreUnavailable, WouldBlockItself
from duly.store import group_commit as committer_module
from duly.store.group_commit import Committer
from tests.servers.processes import wait_until
from tests.strikes import Strike

TIMEOUT = 20.0
WEDGED = 1.0
"""Seconds after which a caller that should be answered at once is taken to be wedged."""
NUMBERS = itertools.count()
COMMITTER = ("duly/store/group_commit.py", "duly/store/wake_lock.py")
SCALE = float(os.environ.get("DULY_TEST_SCALE", "1"))


class Writer:
    """Stands for the transaction: remembers what was written together, and can be held up."""

    def __init__(self):
        self.commits = []
        self.threads = []
        self.refused = {}
        self._held = threading.Event()
        self._held.set()
        self.under_way = threading.Event()

    def __call__(self, ops):
        self.threads.append(threading.current_thread())
        self.under_way.set()
        assert self._held.wait(TIMEOUT)
        for op in ops:
            if op in self.refused:
                self.commits.append(("refused", *ops))
                raise self.refused[op]
        self.commits.append(tuple(ops))
        return [f"{op} done" for op in ops]

    @contextmanager
    def held(self):
        """Hold up every commit that begins in this block until its end."""
        self._held.clear()
        self.under_way.clear()
        try:
            yield
        finally:
            self.go_on()

    def go_on(self):
        """Hold up nothing any more."""
        self._held.set()


class Caller(threading.Thread):
    """A thread that applies some ops; a daemon, so that a wedged one does not hold up the end."""

    def __init__(self, committer, *ops):
        super().__init__(daemon=True)
        self._committer = committer
        self._ops = ops
        self._result = None
        self.start()

    def run(self):
        try:
            self._result = self._committer.apply(list(self._ops))
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self._result = error

    def result(self, timeout=TIMEOUT):
        self.join(timeout)
        assert not self.is_alive(), "the caller is wedged"
        return self._result


class Submission:
    """Ops left with the committer, and what came back."""

    def __init__(self, committer, *ops):
        self._answered = threading.Event()
        self._result = None
        self.thread = None
        committer.submit(list(ops), self._done)

    def _done(self, result):
        self._result = result
        self.thread = threading.current_thread()
        self._answered.set()

    def result(self, timeout=TIMEOUT):
        assert self._answered.wait(timeout), "the submission is wedged"
        return self._result


@pytest.fixture
def writer():
    """The transaction below the committer."""
    return Writer()


@pytest.fixture
def name():
    """The name of the committer's thread, which no other thread has."""
    return f"committer-{next(NUMBERS)}"


@pytest.fixture
def committer(writer, name):
    """A committer over that transaction."""
    committer = Committer(writer, name=name)
    yield committer
    if not committer._line:  # One that a test has shown to be wedged cannot be closed.
        committer.close()


@contextmanager
def busy(committer, writer, *, by="first"):
    """Keep a commit under way for a block; whoever comes meanwhile waits."""
    with writer.held():
        leader = Caller(committer, by)
        assert writer.under_way.wait(TIMEOUT)
        yield leader


def gather(committer, *groups):
    """Let callers come one after the other while a commit is under way."""
    callers = []
    for ops in groups:
        before = waiting(committer)
        callers.append(Caller(committer, *ops))
        wait_until(
            lambda before=before: waiting(committer) > before,
            seconds=TIMEOUT,
            what="the caller waits in line",
        )
    return callers


def waiting(committer):
    """Return how many requests wait in line for the end of the commit that is under way."""
    return sum(request.ops != () for request in list(committer._line)) - 1


def threads_called(name):
    return [thread for thread in threading.enumerate() if thread.name == name]


# -- leaders and followers --


def test_a_lone_caller_writes_in_its_own_thread(committer, writer, name):
    answers = committer.apply(["a", "b"])

    assert answers == ["a done", "b done"]
    assert writer.threads == [threading.current_thread()]
    assert threads_called(name) == []


def test_callers_one_after_the_other_have_a_commit_each(committer, writer):
    committer.apply(["a"])
    committer.apply(["b"])

    assert writer.commits == [("a",), ("b",)]


def test_whoever_comes_during_a_commit_shares_the_next(committer, writer):
    with busy(committer, writer) as leader:
        followers = gather(committer, ["a"], ["b", "c"], ["d"])

    assert leader.result() == ["first done"]
    assert [f.result() for f in followers] == [["a done"], ["b done", "c done"], ["d done"]]
    assert writer.commits == [("first",), ("a", "b", "c", "d")]


def test_the_next_commit_is_led_by_the_first_who_waits(committer, writer):
    with busy(committer, writer):
        followers = gather(committer, ["a"], ["b"])
    for follower in followers:
        follower.result()

    assert writer.threads[1] is followers[0]


def test_a_leader_does_not_wait_for_the_commit_after_its_own(committer, writer):
    with busy(committer, writer) as leader:
        (follower,) = gather(committer, ["a"])
        writer.go_on()
        assert leader.result() == ["first done"]
    assert follower.result() == ["a done"]


def test_a_commit_takes_no_more_ops_than_its_limit(committer, writer, monkeypatch):
    monkeypatch.setattr(committer_module, "COMMIT_OPS", 5)
    with busy(committer, writer):
        followers = gather(committer, "ab", "cd", "ef", "ghijklm", "n")
    for follower in followers:
        follower.result()

    # A call is never torn apart, not even one that is larger than the limit.
    assert [len(commit) for commit in writer.commits] == [1, 4, 2, 7, 1]


# -- errors --


def test_a_commit_takes_no_more_bytes_than_its_limit(writer, monkeypatch):
    monkeypatch.setattr(committer_module, "TRANSACTION_BYTES", 5)
    with closing(Committer(writer, name="bytes", size_of=len)) as committer:
        with busy(committer, writer):
            callers = gather(committer, ["aa", "aaa"], ["b"], ["cccccccc"], ["d"], ["e"])

        for caller in callers:
            caller.result()
        assert writer.commits == [("first",), ("aa", "aaa"), ("b",), ("cccccccc",), ("d", "e")]


def test_a_lone_caller_gets_its_error_and_the_next_goes_on(committer, writer):
    writer.refused["bad"] = ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        committer.apply(["bad"])

    assert committer.apply(["good"]) == ["good done"]


def test_a_refused_call_in_a_shared_commit_fails_alone(committer, writer):
    writer.refused["bad"] = ValueError("bad")
    with busy(committer, writer):
        good, bad, fine = gather(committer, ["a"], ["b", "bad"], ["c"])

    assert good.result() == ["a done"]
    assert isinstance(bad.result(), ValueError)
    assert fine.result() == ["c done"]
    assert writer.commits == [
        ("first",),
        ("refused", "a", "b", "bad", "c"),
        ("a",),
        ("refused", "b", "bad"),
        ("c",),
    ]


def test_a_store_that_cannot_be_reached_fails_all_who_share_the_commit_at_once(committer, writer):
    writer.refused["b"] = StoreUnavailable("gone")
    with busy(committer, writer):
        followers = gather(committer, ["a"], ["b"], ["c"])

    results = [follower.result() for follower in followers]
    assert [type(result) for result in results] == [StoreUnavailable] * 3
    assert len(writer.commits) == 2
    del writer.refused["b"]
    assert committer.apply(["b"]) == ["b done"]


def test_a_lone_caller_that_is_interrupted_lets_the_next_go_on(committer, writer):
    writer.refused["a"] = KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt):
        committer.apply(["a"])

    assert committer.apply(["b"]) == ["b done"]


def test_a_leader_that_is_interrupted_does_not_leave_its_followers_waiting(committer, writer):
    writer.refused["a"] = KeyboardInterrupt()
    with busy(committer, writer):
        leader, follower = gather(committer, ["a"], ["b"])

    assert isinstance(leader.result(WEDGED), KeyboardInterrupt)
    follower.result(WEDGED)
    assert committer.apply(["c"]) == ["c done"]


# -- submitting --


def test_submitted_ops_are_written_by_the_committers_own_thread(committer, writer, name):
    submission = Submission(committer, "a", "b")

    assert submission.result() == ["a done", "b done"]
    assert submission.thread.name == name
    assert writer.threads == [submission.thread]


def test_a_submission_does_not_wait_for_its_commit(committer, writer):
    with writer.held():
        submission = Submission(committer, "a")
        assert writer.under_way.wait(TIMEOUT)
        assert not submission._answered.is_set()

    assert submission.result() == ["a done"]


def test_submissions_of_many_threads_are_all_answered(committer, writer, name):
    submissions = {}

    def submit_some(first):
        for number in range(first, first + 50):
            submissions[number] = Submission(committer, number)

    threads = [threading.Thread(target=submit_some, args=(first,)) for first in range(0, 400, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    results = {number: submission.result() for number, submission in submissions.items()}
    assert results == {number: [f"{number} done"] for number in range(400)}
    assert sorted(op for commit in writer.commits for op in commit) == list(range(400))
    assert len(threads_called(name)) == 1


def test_submissions_and_callers_share_commits(committer, writer):
    with busy(committer, writer):
        submission = Submission(committer, "a")
        (caller,) = gather(committer, ["b"])
        late = Submission(committer, "c")

    assert (submission.result(), caller.result(), late.result()) == (
        ["a done"],
        ["b done"],
        ["c done"],
    )
    assert writer.commits == [("first",), ("a", "b", "c")]


def test_ops_are_written_in_the_order_of_their_arrival(committer, writer, monkeypatch):
    """Also if a caller leads that came after a submission, as the committer's thread is late."""
    monkeypatch.setattr(committer, "_call_thread", lambda: None)
    with busy(committer, writer):
        submission = Submission(committer, "a")
        caller, _ = gather(committer, ["b"], ["c"])

    assert (submission.result(), caller.result()) == (["a done"], ["b done"])
    assert writer.threads[1] is caller
    assert writer.commits == [("first",), ("a", "b", "c")]


def test_a_submission_that_is_refused_is_told_so(committer, writer):
    writer.refused["bad"] = ValueError("bad")

    assert isinstance(Submission(committer, "bad").result(), ValueError)
    assert Submission(committer, "good").result() == ["good done"]


def test_a_submission_may_submit_the_next(committer):
    second = []
    answered = threading.Event()

    def then(result):
        second.append(result)
        answered.set()

    committer.submit(["a"], lambda _: committer.submit(["b"], then))

    assert answered.wait(TIMEOUT)
    assert second == [["b done"]]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_submission_whose_answer_nobody_takes_harms_no_other(committer, writer):
    def closed_loop(result):
        raise RuntimeError("Event loop is closed")

    with busy(committer, writer):
        committer.submit(["a"], closed_loop)
        (caller,) = gather(committer, ["b"])

    assert caller.result(WEDGED) == ["b done"]
    assert Submission(committer, "c").result(WEDGED) == ["c done"]


# -- followers that are interrupted --


@contextmanager
def interrupted_when(condition):
    """Raise KeyboardInterrupt in the test's own thread as Ctrl-C would, once a condition holds."""

    def interrupt(_number, _frame):
        raise KeyboardInterrupt

    def watch():
        wait_until(condition, seconds=TIMEOUT, what="the moment to interrupt")
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        watcher.join()
        signal.signal(signal.SIGUSR1, before)


def test_an_interrupted_follower_takes_its_ops_back_and_the_others_go_on(committer, writer):
    with busy(committer, writer) as leader:
        with (
            interrupted_when(lambda: waiting(committer) == 1),
            pytest.raises(KeyboardInterrupt),
        ):
            committer.apply(["withdrawn"])
        (follower,) = gather(committer, ["a"])

    assert leader.result() == ["first done"]
    assert follower.result() == ["a done"]
    assert writer.commits == [("first",), ("a",)]
    assert committer.apply(["b"]) == ["b done"]


def test_a_follower_interrupted_while_its_ops_are_written_harms_nobody(writer):
    being_written, go_on = threading.Event(), threading.Event()

    def write(ops):
        if "mine" in ops:
            being_written.set()
            assert go_on.wait(TIMEOUT)
        return writer(ops)

    with closing(Committer(write, name="interrupted")) as committer:
        with busy(committer, writer):
            (other,) = gather(committer, ["other"])
            mine_waits = threading.Thread(target=lambda: both_wait(committer) and writer.go_on())
            mine_waits.start()
            # The next commit is led by the other caller and holds the ops of both.
            with interrupted_when(being_written.is_set), pytest.raises(KeyboardInterrupt):
                committer.apply(["mine"])
            mine_waits.join()
        go_on.set()

        assert other.result() == ["other done"]
        assert writer.commits == [("first",), ("other", "mine")]
        assert committer.apply(["next"]) == ["next done"]


def both_wait(committer):
    wait_until(lambda: waiting(committer) == 2, seconds=TIMEOUT, what="both wait in line")
    return True


def test_a_time_limit_that_strikes_the_leader_is_raised_there_and_nothing_is_written_again(
    committer, writer
):
    class TimeLimit(Exception):
        """As that of Celery or RQ, which a signal raises wherever the thread is."""

    limit = writer.refused["mine"] = TimeLimit()
    with busy(committer, writer):
        leader, follower = gather(committer, ["mine"], ["other"])

    assert leader.result() is limit
    told = follower.result()
    assert isinstance(told, StoreUnavailable)
    assert told.__cause__ is limit
    assert writer.commits == [("first",), ("refused", "mine", "other")]
    assert committer.apply(["next"]) == ["next done"]


def test_a_submission_that_comes_while_the_committer_closes_is_answered(writer, monkeypatch):
    committer = Committer(writer, name="closing")
    is_closed = threading.Event()
    request_of = committer_module._Request

    def request_behind_the_check(ops, done=None):
        if done is not None:
            committer.close()
            is_closed.set()
        return request_of(ops, done)

    monkeypatch.setattr(committer_module, "_Request", request_behind_the_check)

    submission = Submission(committer, "late")

    assert is_closed.is_set()
    assert isinstance(submission.result(), StoreError)
    assert writer.commits == []


def test_a_follower_that_gives_up_as_its_turn_comes_passes_it_on(committer, writer, monkeypatch):
    turn_of_follower = threading.Event()
    lead = committer._lead

    def lead_or_be_interrupted(request):
        if request.ops == ["given up"]:
            turn_of_follower.set()
            raise KeyboardInterrupt
        lead(request)

    monkeypatch.setattr(committer, "_lead", lead_or_be_interrupted)
    with busy(committer, writer) as leader:
        gives_up, follower = gather(committer, ["given up"], ["a"])

    assert isinstance(gives_up.result(WEDGED), KeyboardInterrupt)
    assert turn_of_follower.is_set()
    assert (leader.result(), follower.result(WEDGED)) == (["first done"], ["a done"])
    assert writer.commits == [("first",), ("a",)]
    assert Caller(committer, "b").result(WEDGED) == ["b done"]


# -- closing --


def test_a_closed_committer_refuses(committer):
    committer.close()

    with pytest.raises(StoreError, match="closed"):
        committer.apply(["a"])
    with pytest.raises(StoreError, match="closed"):
        committer.submit(["a"], print)


def test_closing_ends_the_thread(committer, name):
    Submission(committer, "a").result()

    committer.close()

    assert threads_called(name) == []


def test_closing_twice_is_closing(committer, name):
    Submission(committer, "a").result()

    committer.close()
    committer.close()

    assert threads_called(name) == []


def test_closing_from_the_committers_own_thread_does_not_block(committer):
    closed = threading.Event()

    def close(_result):
        committer.close()
        closed.set()

    committer.submit(["a"], close)

    assert closed.wait(TIMEOUT)


def test_closing_waits_for_what_was_submitted(committer, writer):
    with writer.held():
        submission = Submission(committer, "a")
        assert writer.under_way.wait(TIMEOUT)
        late = Submission(committer, "b")
        closer = threading.Thread(target=committer.close, daemon=True)
        closer.start()

    closer.join(TIMEOUT)
    assert not closer.is_alive()
    assert submission.result(0) == ["a done"]
    assert late.result(0) == ["b done"]


def test_closing_waits_for_a_submission_behind_a_caller(committer, writer):
    with busy(committer, writer):
        Submission(committer, "a")
        closer = threading.Thread(target=committer.close, daemon=True)
        closer.start()
        closer.join(WEDGED / 5)

        assert closer.is_alive()


def test_closing_while_callers_wait_comes_to_an_end(committer, writer):
    Submission(committer, "before").result()
    with busy(committer, writer) as leader:
        (follower,) = gather(committer, ["a"])
        closer = threading.Thread(target=committer.close, daemon=True)
        closer.start()
        wait_until(lambda: committer._is_closing, seconds=TIMEOUT, what="the committer is closing")

    assert (leader.result(), follower.result()) == (["first done"], ["a done"])
    closer.join(WEDGED)
    assert not closer.is_alive()


# -- all of it together --


@pytest.mark.scaled
def test_every_call_of_many_threads_is_written_once_and_answered_rightly(committer, writer):
    count = round(300 * SCALE)
    for bad in range(0, 8 * count, 97):
        writer.refused[bad] = ValueError(bad)

    def call_often(first, answers):
        draw = random.Random(first)  # noqa: S311 - repeatable, not secret
        for op in range(first * count, (first + 1) * count):
            if draw.random() < 0.3:
                answers[op] = Submission(committer, op)
            else:
                answers[op] = Caller(committer, op)

    answers = {}
    threads = [threading.Thread(target=call_often, args=(first, answers)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for op, caller in answers.items():
        result = caller.result()
        assert isinstance(result, ValueError) if op in writer.refused else result == [f"{op} done"]
    written = [op for commit in writer.commits if commit[0] != "refused" for op in commit]
    assert sorted(written) == sorted(set(answers) - set(writer.refused))


def test_a_lone_caller_that_is_interrupted_leaves_the_line_to_others(committer, writer):
    writer.refused["a"] = KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt):
        committer.apply(["a"])

    assert committer.apply(["b"]) == ["b done"]


# -- struck from outside --


@pytest.mark.parametrize("place", ["first", "following"])
def test_a_caller_that_is_struck_at_any_instruction_leaves_nobody_waiting(place, monkeypatch):
    """At every instruction, also where no release of Python raises such an exception today."""
    monkeypatch.setattr(committer_module, "_LOOK_SECONDS", 0.02)
    for number in itertools.count():
        strike = Strike(number, *COMMITTER, anywhere=True)
        told = _struck_once(strike, place)
        if not strike.has_struck:
            break
        for answers in told:
            assert isinstance(answers, StoreUnavailable) or answers[0].endswith(" done")
    assert number > 100


def _struck_once(strike, place):
    """Strike one of several callers; return what the others are told."""
    others: list[Caller] = []
    written: list[str] = []
    gate = "mine" if place == "first" else "gate"

    def write(ops):
        if ops[0] == gate:
            if place == "following":
                mine.start()
                wait_until(
                    lambda: waiting(committer) == 1 or not mine.is_alive(),
                    seconds=TIMEOUT,
                    what="its place in the line",
                )
            others.extend(Caller(committer, f"behind {number}") for number in range(2))
            wait_until(lambda: waiting(committer) >= 2, seconds=TIMEOUT, what="the line")
        written.extend(ops)
        return [f"{op} done" for op in ops]

    committer = Committer(write, name="struck")
    act = functools.partial(committer.apply, ["mine"])
    mine = threading.Thread(target=strike.call, args=(act,), daemon=True)
    if place == "first":
        mine.start()
    else:
        assert Caller(committer, gate).result() == ["gate done"]
    mine.join(TIMEOUT)
    assert not mine.is_alive(), "the struck caller is wedged"
    told = [other.result(WEDGED) for other in others]
    assert Caller(committer, "last").result(WEDGED) == ["last done"]
    assert len(written) == len(set(written))
    assert not committer._line
    committer.close()
    return told


def test_an_event_loop_that_is_struck_at_any_instruction_leaves_nobody_waiting(monkeypatch):
    monkeypatch.setattr(committer_module, "_LOOK_SECONDS", 0.02)
    for number in itertools.count():
        strike = Strike(number, *COMMITTER, anywhere=True)
        writer = Writer()
        with closing(Committer(writer, name=f"struck-{number}")) as committer:
            strike.call(lambda committer=committer: Submission(committer, "mine"))

            assert Submission(committer, "other").result(WEDGED) == ["other done"]
            assert Caller(committer, "last").result(WEDGED) == ["last done"]
        written = [op for commit in writer.commits for op in commit]
        assert sorted(written) in (["last", "mine", "other"], ["last", "other"])
        if not strike.has_struck:
            break
    assert number > 20


@pytest.mark.parametrize("moment", ["before it leads", "while it leads", "as it hands over"])
def test_a_leader_that_cannot_even_say_goodbye_is_made_up_for(
    committer, writer, moment, monkeypatch
):
    """As if a second exception struck in the midst of what the first one made it do."""
    monkeypatch.setattr(committer_module, "_LOOK_SECONDS", 0.02)
    settle, lead, wake_first = committer._settle, committer._lead, committer._wake_first

    def settle_and_be_struck(request):
        if threading.current_thread() is leader:
            raise KeyboardInterrupt
        settle(request)

    def wake_and_be_struck():
        if threading.current_thread() is leader:
            raise KeyboardInterrupt
        wake_first()

    def lead_and_be_struck(request):
        if request.ops == ["a"]:
            if moment == "while it leads":
                request.batch = committer._batch_of(request)
            raise KeyboardInterrupt
        lead(request)

    leader = None
    with busy(committer, writer):
        leader, follower = gather(committer, ["a"], ["b"])
        monkeypatch.setattr(committer, "_settle", settle_and_be_struck)
        monkeypatch.setattr(committer, "_wake_first", wake_and_be_struck)
        if moment == "as it hands over":
            writer.refused["a"] = KeyboardInterrupt()
        else:
            monkeypatch.setattr(committer, "_lead", lead_and_be_struck)

    assert isinstance(leader.result(WEDGED), KeyboardInterrupt)
    told = follower.result(WEDGED)
    assert told == ["b done"] if moment == "before it leads" else isinstance(told, StoreError)
    assert Caller(committer, "c").result(WEDGED) == ["c done"]


def test_a_call_that_interrupts_a_call_of_its_thread_is_refused_instead_of_waiting():
    def write(ops):
        if ops == ["outer"]:
            # As a signal handler does that runs in the midst of this.
            with pytest.raises(WouldBlockItself, match="signal handler"):
                committer.apply(["inner"])
        return ops

    committer = Committer(write, name="test")
    with closing(committer):
        assert committer.apply(["outer"]) == ["outer"]
        assert committer.apply(["later"]) == ["later"]
