"""The comparison of upstream tests with the committed lists, and those lists."""

import re
from pathlib import Path

import pytest

from tests.upstream.comparison import BadList, Reason, compare, read_passes, read_reasons
from tests.upstream.packages import PACKAGES
from tests.upstream.shims.aliases import Absent, Alias

HERE = Path(__file__).parent
PRIVATE = Reason("private name: executors.", ("tests/test_executor.py::*",))


def test_the_lists_hold_while_each_test_has_passed_as_before_or_has_a_reason():
    outcomes = {"a.py::one": "passed", "tests/test_executor.py::run[1]": "failed"}

    found = compare(outcomes, ["a.py::one"], [PRIVATE])

    assert found.is_good
    assert (found.tests, found.passed) == (2, 1)
    assert found.new == found.unused == ()


@pytest.mark.parametrize("outcome", ["failed", "skipped", None])
def test_a_test_that_passed_before_must_pass_despite_a_matching_reason(outcome):
    test = "tests/test_executor.py::run"
    outcomes = {} if outcome is None else {test: outcome}

    found = compare(outcomes, [test], [PRIVATE])

    assert found.lost == (test,)
    assert not found.is_good


@pytest.mark.parametrize("outcome", ["failed", "skipped"])
def test_a_test_without_a_pass_needs_a_reason(outcome):
    found = compare({"a.py::one": outcome, "b.py::one": "passed"}, ["b.py::one"], [PRIVATE])

    assert found.unexplained == ("a.py::one",)
    assert found.unused == PRIVATE.patterns
    assert not found.is_good


def test_a_new_pass_is_reported_and_is_no_failure():
    found = compare({"a.py::one": "passed"}, [], [])

    assert found.new == ("a.py::one",)
    assert found.is_good


def test_a_pass_that_has_a_reason_is_not_added_to_the_list():
    found = compare({"tests/test_executor.py::run": "passed"}, [], [PRIVATE])

    assert found.new == ()
    assert found.outdated == ("tests/test_executor.py::run",)
    assert found.is_good


@pytest.mark.parametrize("outcome", ["passed", "failed"])
def test_a_test_that_depends_on_timing_may_pass_or_fail(outcome):
    reason = Reason("depends on timing: the worker is faster.", ("a.py::one",))

    found = compare({"a.py::one": outcome}, [], [reason])

    assert found.is_good
    assert found.new == found.outdated == found.unused == ()


def test_only_a_star_matches_other_text():
    reason = Reason("private name: one.", ("a.py::one[*]", "b.py::t.o"))

    assert reason.explains("a.py::one[x-1]")
    assert not reason.explains("a.py::onex")
    assert not reason.explains("b.py::two")


@pytest.mark.parametrize("text", ["b\na\n", "a\na\n", "a\n\n"])
def test_passes_are_sorted_and_named_once(text):
    with pytest.raises(BadList, match="sorted"):
        read_passes(text)


@pytest.mark.parametrize(
    "text",
    [
        "    a.py::one\n",
        "private name: no test.\n",
        "because it fails.\n    a.py::one\n",
        "private name: without an end\n    a.py::one\n",
    ],
)
def test_a_reason_is_a_sentence_of_a_known_kind_with_the_tests_that_it_explains(text):
    with pytest.raises(BadList):
        read_reasons(text)


def test_reasons_are_read_with_their_tests():
    text = "private name: one.\n    a.py::*\n    b.py::one\n\nnot tested here: two.\n    c.py::*\n"

    first, second = read_reasons(text)

    assert first == Reason("private name: one.", ("a.py::*", "b.py::one"))
    assert second.patterns == ("c.py::*",)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_the_committed_lists_can_be_read_and_the_version_is_pinned_by_its_hash(package):
    passes = read_passes((HERE / f"{package.name}.passes").read_text())
    assert len(passes) == package.passes, "the README says when a test may leave the list"
    assert read_reasons((HERE / f"{package.name}.reasons").read_text())
    pinned = (HERE.parents[1] / "requirements" / "upstream-sources.txt").read_text()
    line = rf"^{package.name}=={re.escape(package.version)} --hash=sha256:[0-9a-f]{{64}}$"
    assert re.search(line, pinned, re.MULTILINE)


def test_a_name_that_duly_does_not_have_can_be_imported_and_fails_the_test_that_uses_it():
    alias = Alias("upstream_of_tests", {"": ("duly.errors",), "inner": ()})
    module = alias.create_module(alias.find_spec("upstream_of_tests"))
    alias.exec_module(module)

    assert module.BadOption.__module__ == "duly.errors"
    assert isinstance(module.Executor, Absent)
    assert alias.find_spec("upstream_of_tests.inner") is not None
    assert alias.find_spec("upstream_of_tests.other") is None
    for use in (module.Executor, lambda: module.Executor.name):
        with pytest.raises(NotImplementedError, match=r"duly has no upstream_of_tests\.Executor"):
            use()
