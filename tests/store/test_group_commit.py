"""Group commit: a lone caller writes at once, concurrent callers share a commit.

A caller that gives up leaves no other caller waiting.
"""

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
STUCK = 1.0
"""Seconds after which a caller that should get its answer at once counts as stuck."""
NUMBERS = itertools.count()
COMMITTER = ("duly/store/group_commit.py", "duly/store/wake_lock.py")
SCALE = float(os.environ.get("DULY_TEST_SCALE", "1"))


class Writer:
    """Replaces the transaction: it records which ops were written together, and can be held."""

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
        """Hold every commit that begins in this block until the end of the block."""
        self._held.clear()
        self.under_way.clear()
        try:
            yield
        finally:
            self.release()

    def release(self):
        """Let the held commits continue."""
        self._held.set()


class Caller(threading.Thread):
    """A thread that applies some ops. It is a daemon, so a stuck one does not delay the exit."""

    def __init__(self, committer, *ops):
        super().__init__(daemon=True)
        self._committer = committer
        self._ops = ops
        self._result = None
        self.start()

    def run(self):
        try:
            self._result = self._committer.apply(list(self._ops))
        except BaseException as error:  # noqa: BLE001 - the test compares it
            self._result = error

    def result(self, timeout=TIMEOUT):
        self.join(timeout)
        assert not self.is_alive(), "the caller is stuck"
        return self._result


class Submission:
    """Ops that were submitted to the committer, and their result."""

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
        assert self._answered.wait(timeout), "the submission is stuck"
        return self._result


@pytest.fixture
def writer():
    """The transaction that the committer uses."""
    return Writer()


@pytest.fixture
def name():
    """The name of the committer's thread, which no other thread has."""
    return f"committer-{next(NUMBERS)}"


@pytest.fixture
def committer(writer, name):
    """A committer with that transaction."""
    committer = Committer(writer, name=name)
    yield committer
    if not committer._line:  # A committer that is stuck, as a failed test shows, cannot be closed.
        committer.close()


@contextmanager
def busy(committer, writer, *, by="first"):
    """Keep a commit under way for a block, so that callers have to wait."""
    with writer.held():
        leader = Caller(committer, by)
        assert writer.under_way.wait(TIMEOUT)
        yield leader


def gather(committer, *groups):
    """Start callers one after the other while a commit is under way."""
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
    """Return the number of requests that wait for the end of the commit that is under way."""
    return sum(request.ops != () for request in list(committer._line)) - 1


def threads_named(name):
    return [thread for thread in threading.enumerate() if thread.name == name]


# -- leaders and followers --


def test_a_lone_caller_writes_in_its_own_thread(committer, writer, name):
    answers = committer.apply(["a", "b"])

    assert answers == ["a done", "b done"]
    assert writer.threads == [threading.current_thread()]
    assert threads_named(name) == []


def test_callers_one_after_the_other_have_a_commit_each(committer, writer):
    committer.apply(["a"])
    committer.apply(["b"])

    assert writer.commits == [("a",), ("b",)]


def test_callers_that_arrive_during_a_commit_share_the_next(committer, writer):
    with busy(committer, writer) as leader:
        followers = gather(committer, ["a"], ["b", "c"], ["d"])

    assert leader.result() == ["first done"]
    assert [f.result() for f in followers] == [["a done"], ["b done", "c done"], ["d done"]]
    assert writer.commits == [("first",), ("a", "b", "c", "d")]


def test_the_first_waiting_caller_leads_the_next_commit(committer, writer):
    with busy(committer, writer):
        followers = gather(committer, ["a"], ["b"])
    for follower in followers:
        follower.result()

    assert writer.threads[1] is followers[0]


def test_a_leader_does_not_wait_for_the_commit_after_its_own(committer, writer):
    with busy(committer, writer) as leader:
        (follower,) = gather(committer, ["a"])
        writer.release()
        assert leader.result() == ["first done"]
    assert follower.result() == ["a done"]


def test_a_commit_takes_no_more_ops_than_its_limit(committer, writer, monkeypatch):
    monkeypatch.setattr(committer_module, "COMMIT_OPS", 5)
    with busy(committer, writer):
        followers = gather(committer, "ab", "cd", "ef", "ghijklm", "n")
    for follower in followers:
        follower.result()

    # A call is never split, even if it is larger than the limit.
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


def test_a_lone_caller_gets_its_error_and_the_next_call_succeeds(committer, writer):
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


def test_an_outage_fails_all_callers_who_share_the_commit_at_once(committer, writer):
    writer.refused["b"] = StoreUnavailable("gone")
    with busy(committer, writer):
        followers = gather(committer, ["a"], ["b"], ["c"])

    results = [follower.result() for follower in followers]
    assert [type(result) for result in results] == [StoreUnavailable] * 3
    assert len(writer.commits) == 2
    del writer.refused["b"]
    assert committer.apply(["b"]) == ["b done"]


def test_the_interruption_of_a_lone_caller_does_not_affect_the_next_call(committer, writer):
    writer.refused["a"] = KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt):
        committer.apply(["a"])

    assert committer.apply(["b"]) == ["b done"]


def test_a_leader_that_is_interrupted_does_not_leave_its_followers_waiting(committer, writer):
    writer.refused["a"] = KeyboardInterrupt()
    with busy(committer, writer):
        leader, follower = gather(committer, ["a"], ["b"])

    assert isinstance(leader.result(STUCK), KeyboardInterrupt)
    follower.result(STUCK)
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
    assert len(threads_named(name)) == 1


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
    """The order also holds if a caller leads that arrived after a submission."""
    monkeypatch.setattr(committer, "_call_thread", lambda: None)
    with busy(committer, writer):
        submission = Submission(committer, "a")
        caller, _ = gather(committer, ["b"], ["c"])

    assert (submission.result(), caller.result()) == (["a done"], ["b done"])
    assert writer.threads[1] is caller
    assert writer.commits == [("first",), ("a", "b", "c")]


def test_a_refused_submission_is_answered_with_the_error(committer, writer):
    writer.refused["bad"] = ValueError("bad")

    assert isinstance(Submission(committer, "bad").result(), ValueError)
    assert Submission(committer, "good").result() == ["good done"]


def test_the_answer_to_a_submission_may_submit_the_next(committer):
    second = []
    answered = threading.Event()

    def then(result):
        second.append(result)
        answered.set()

    committer.submit(["a"], lambda _: committer.submit(["b"], then))

    assert answered.wait(TIMEOUT)
    assert second == [["b done"]]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_submission_whose_callback_raises_does_not_affect_others(committer, writer):
    def closed_loop(result):
        raise RuntimeError("Event loop is closed")

    with busy(committer, writer):
        committer.submit(["a"], closed_loop)
        (caller,) = gather(committer, ["b"])

    assert caller.result(STUCK) == ["b done"]
    assert Submission(committer, "c").result(STUCK) == ["c done"]


# -- followers that are interrupted --


@contextmanager
def interrupted_when(condition):
    """Raise KeyboardInterrupt in the thread of the test, as Ctrl-C does, once a condition holds."""

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


def test_an_interrupted_follower_withdraws_its_ops_and_the_others_are_written(committer, writer):
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


def test_interrupting_a_follower_while_its_ops_are_written_does_not_affect_others(writer):
    being_written, release = threading.Event(), threading.Event()

    def write(ops):
        if "mine" in ops:
            being_written.set()
            assert release.wait(TIMEOUT)
        return writer(ops)

    with closing(Committer(write, name="interrupted")) as committer:
        with busy(committer, writer):
            (other,) = gather(committer, ["other"])
            mine_waits = threading.Thread(target=lambda: both_wait(committer) and writer.release())
            mine_waits.start()
            # The other caller leads the next commit, which contains the ops of both.
            with interrupted_when(being_written.is_set), pytest.raises(KeyboardInterrupt):
                committer.apply(["mine"])
            mine_waits.join()
        release.set()

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
        """Like the time limits of Celery and RQ, which a signal raises anywhere in the thread."""

    limit = writer.refused["mine"] = TimeLimit()
    with busy(committer, writer):
        leader, follower = gather(committer, ["mine"], ["other"])

    assert leader.result() is limit
    told = follower.result()
    assert isinstance(told, StoreUnavailable)
    assert told.__cause__ is limit
    assert writer.commits == [("first",), ("refused", "mine", "other")]
    assert committer.apply(["next"]) == ["next done"]


def test_a_submission_during_the_close_of_the_committer_is_answered(writer, monkeypatch):
    committer = Committer(writer, name="closing")
    is_closed = threading.Event()
    request_of = committer_module._Request

    def request_after_the_check(ops, done=None, **kind):
        if done is not None:
            committer.close()
            is_closed.set()
        return request_of(ops, done, **kind)

    monkeypatch.setattr(committer_module, "_Request", request_after_the_check)

    submission = Submission(committer, "late")

    assert is_closed.is_set()
    assert isinstance(submission.result(), StoreError)
    assert writer.commits == []


def test_a_follower_that_gives_up_when_it_should_lead_lets_the_next_one_lead(
    committer, writer, monkeypatch
):
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

    assert isinstance(gives_up.result(STUCK), KeyboardInterrupt)
    assert turn_of_follower.is_set()
    assert (leader.result(), follower.result(STUCK)) == (["first done"], ["a done"])
    assert writer.commits == [("first",), ("a",)]
    assert Caller(committer, "b").result(STUCK) == ["b done"]


# -- closing --


def test_a_closed_committer_refuses_ops(committer):
    committer.close()

    with pytest.raises(StoreError, match="closed"):
        committer.apply(["a"])
    with pytest.raises(StoreError, match="closed"):
        committer.submit(["a"], print)


def test_closing_a_committer_ends_its_thread(committer, name):
    Submission(committer, "a").result()

    committer.close()

    assert threads_named(name) == []


def test_a_committer_may_be_closed_twice(committer, name):
    Submission(committer, "a").result()

    committer.close()
    committer.close()

    assert threads_named(name) == []


def test_closing_from_the_committers_own_thread_does_not_block(committer):
    closed = threading.Event()

    def close(_result):
        committer.close()
        closed.set()

    committer.submit(["a"], close)

    assert closed.wait(TIMEOUT)


def test_closing_waits_for_submissions(committer, writer):
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


def test_closing_waits_for_a_submission_that_waits_for_a_caller(committer, writer):
    with busy(committer, writer):
        Submission(committer, "a")
        closer = threading.Thread(target=committer.close, daemon=True)
        closer.start()
        closer.join(STUCK / 5)

        assert closer.is_alive()


def test_closing_ends_after_the_callers_that_wait(committer, writer):
    Submission(committer, "before").result()
    with busy(committer, writer) as leader:
        (follower,) = gather(committer, ["a"])
        closer = threading.Thread(target=committer.close, daemon=True)
        closer.start()
        wait_until(lambda: committer._is_closing, seconds=TIMEOUT, what="the committer is closing")

    assert (leader.result(), follower.result()) == (["first done"], ["a done"])
    closer.join(STUCK)
    assert not closer.is_alive()


# -- all of it together --


@pytest.mark.scaled
def test_each_call_of_many_threads_is_written_once_and_gets_its_own_answer(committer, writer):
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


def test_a_lone_caller_that_is_interrupted_does_not_block_the_queue(committer, writer):
    writer.refused["a"] = KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt):
        committer.apply(["a"])

    assert committer.apply(["b"]) == ["b done"]


# -- exceptions from outside --


@pytest.mark.parametrize("place", ["first", "following"])
def test_a_caller_that_is_struck_at_any_instruction_leaves_no_caller_waiting(place, monkeypatch):
    """This includes instructions at which no release of Python raises such an exception."""
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
    """Strike one of several callers; return the answers that the others get."""
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
                    what="the struck caller waits",
                )
            others.extend(Caller(committer, f"later {number}") for number in range(2))
            wait_until(lambda: waiting(committer) >= 2, seconds=TIMEOUT, what="the others wait")
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
    assert not mine.is_alive(), "the struck caller is stuck"
    told = [other.result(STUCK) for other in others]
    assert Caller(committer, "last").result(STUCK) == ["last done"]
    assert len(written) == len(set(written))
    assert not committer._line
    committer.close()
    return told


def test_an_event_loop_that_is_struck_at_any_instruction_leaves_no_caller_waiting(monkeypatch):
    monkeypatch.setattr(committer_module, "_LOOK_SECONDS", 0.02)
    for number in itertools.count():
        strike = Strike(number, *COMMITTER, anywhere=True)
        writer = Writer()
        with closing(Committer(writer, name=f"struck-{number}")) as committer:
            strike.call(lambda committer=committer: Submission(committer, "mine"))

            assert Submission(committer, "other").result(STUCK) == ["other done"]
            assert Caller(committer, "last").result(STUCK) == ["last done"]
        written = [op for commit in writer.commits for op in commit]
        assert sorted(written) in (["last", "mine", "other"], ["last", "other"])
        if not strike.has_struck:
            break
    assert number > 20


@pytest.mark.parametrize("moment", ["before it leads", "while it leads", "as it hands over"])
def test_a_leader_that_is_struck_twice_does_not_block_the_others(
    committer, writer, moment, monkeypatch
):
    """A second exception strikes while the leader handles the first one."""
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

    assert isinstance(leader.result(STUCK), KeyboardInterrupt)
    told = follower.result(STUCK)
    assert told == ["b done"] if moment == "before it leads" else isinstance(told, StoreError)
    assert Caller(committer, "c").result(STUCK) == ["c done"]


def test_a_call_that_interrupts_a_call_of_its_thread_is_refused_instead_of_waiting():
    def write(ops):
        if ops == ["outer"]:
            # As a signal handler does that runs during this write.
            with pytest.raises(WouldBlockItself, match="signal handler"):
                committer.apply(["inner"])
        return ops

    committer = Committer(write, name="test")
    with closing(committer):
        assert committer.apply(["outer"]) == ["outer"]
        assert committer.apply(["later"]) == ["later"]
