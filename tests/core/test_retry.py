"""The delay before a failed attempt is retried."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.core.retry import NO_RETRIES, Retry
from duly.errors import BadOption
from duly.limits import DELAY_SECONDS

PLAIN = Retry(10, base=2.0, factor=3.0, max_delay=100.0, jitter=False)


@pytest.mark.parametrize(
    ("retries_used", "seconds"), [(0, 2.0), (1, 6.0), (2, 18.0), (3, 54.0), (4, 100.0), (9, 100.0)]
)
def test_delays_grow_by_the_factor_up_to_max_delay(retries_used, seconds):
    assert PLAIN.delay(retries_used, 0.3) == seconds


@pytest.mark.parametrize(("jitter", "seconds"), [(0.0, 4.0), (0.5, 6.0), (0.75, 7.0)])
def test_jitter_selects_a_delay_from_the_upper_half(jitter, seconds):
    assert Retry(5, base=8.0).delay(0, jitter) == seconds


def test_a_factor_of_one_keeps_the_delay():
    retry = Retry(5, base=7.0, factor=1.0, jitter=False)

    assert [retry.delay(used, 0.0) for used in range(3)] == [7.0, 7.0, 7.0]


@pytest.mark.parametrize("factor", [1.01, 2.0, 3, 1e6, 1e300])
def test_the_thousandth_retry_waits_for_max_delay(factor):
    retry = Retry(1000, base=1.0, factor=factor, max_delay=60.0, jitter=False)

    assert retry.delay(999, 0.0) == 60.0


@given(
    retry=st.builds(
        Retry,
        st.just(1),
        base=st.floats(0, 1e300),
        factor=st.floats(1, 1e300),
        max_delay=st.floats(0, DELAY_SECONDS),
        jitter=st.booleans(),
    ),
    retries_used=st.integers(0, 10_000),
    jitter=st.floats(0, 1, exclude_max=True),
)
def test_a_delay_is_between_zero_and_max_delay(retry, retries_used, jitter):
    assert 0.0 <= retry.delay(retries_used, jitter) <= retry.max_delay


@pytest.mark.parametrize("limit", [-1, 1.5, "3", None, True])
def test_a_limit_that_is_not_a_whole_number_is_refused(limit):
    with pytest.raises(BadOption, match="whole number"):
        Retry(limit)


@pytest.mark.parametrize(
    "option",
    [
        {"base": -0.1},
        {"factor": 0.5},
        {"max_delay": -1.0},
        {"base": float("nan")},
        {"factor": float("nan")},
        {"max_delay": float("nan")},
        {"max_delay": float("inf")},
        {"max_delay": 1e300},
    ],
    ids=str,
)
def test_an_invalid_delay_option_is_refused(option):
    with pytest.raises(BadOption, match="base >= 0, factor >= 1 and"):
        Retry(3, **option)


@pytest.mark.parametrize("name", ["on", "give_up_on"])
@pytest.mark.parametrize("given", [OSError, ("OSError",), (OSError(),), [OSError], None])
def test_what_is_not_a_tuple_of_exceptions_is_refused(name, given):
    with pytest.raises(BadOption, match=f"{name} of a Retry must be a tuple of exception classes"):
        Retry(1, **{name: given})


def test_the_policy_no_retries_has_a_limit_of_zero():
    assert NO_RETRIES.limit == 0
