"""A run that was interrupted in a step that must not start twice, in a real browser."""

import pytest

from duly import Retry, current, step
from duly.dashboard import dashboard
from duly.errors import AttemptTimedOut
from tests.dashboard.conftest import client_of, opened
from tests.dashboard.visit import Visit

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

HEADING = "Did “charge” happen?"


class Payment:
    """A run whose attempt was interrupted while it called the bank."""

    def __init__(self, shop):
        self.app = shop.app
        self.keys = []

        @shop.app.task(name="shop.orders:pay", retries=Retry(1, base=0))
        def pay() -> str:
            return f"paid by {step('charge', self._charge, on_crash='hold')}"

        self.run = pay.enqueue()
        # The second attempt stops at the step without starting it.
        shop.app.worker().drain()
        assert self.run.refresh().state == "interrupted"

    def _charge(self) -> str:
        self.keys.append(current().effect_key("charge"))
        current().log.info("asking the bank for 1,299 cents")
        if current().generation == 1:
            raise AttemptTimedOut
        return "the second call"


@pytest.fixture
def payment(shop):
    return Payment(shop)


@pytest.fixture
def pages(shop):
    """The dashboard for a viewer with permission to act."""
    return dashboard(shop.app, write=True, auth=lambda _request: "ann")


def test_a_step_that_happened_is_marked_as_done_with_its_result(payment, pages, serve, browser):
    with Visit(browser, serve(pages)) as visit:
        page = visit.go(f"/runs/{payment.run.id}")
        card = visit.section(HEADING)
        assert payment.keys[0] in card.inner_text()
        assert "asking the bank for 1,299 cents" in card.inner_text()
        assert page.get_by_role("button", name="Retry").count() == 0, (
            "the run would stop at the step again"
        )
        assert page.get_by_role("link", name="Edit and retry").count() == 0

        card.get_by_label("the result of the step").fill("no JSON")
        card.get_by_label("Why").fill("the bank has it")
        visit.press("It happened")
        page.get_by_role("alert").filter(has_text="not JSON").wait_for()
        assert card.get_by_label("Why").input_value() == "the bank has it", "the typed text stays"
        assert payment.run.refresh().state == "interrupted"

        card.get_by_label("the result of the step").fill('"ch_1"')
        visit.press("It happened")
        payment.app.worker().drain()
        visit.section("Result").get_by_text("paid by ch_1").wait_for()
        done = visit.section("Operator actions").inner_text()
        assert "call step charge done" in done
        assert "the bank has it" in done
        assert page.get_by_text(HEADING).count() == 0
        assert visit.wrong == []
    assert len(payment.keys) == 1, "the bank was called only once"


def test_a_step_that_did_not_happen_runs_again(payment, pages, serve, browser):
    with Visit(browser, serve(pages)) as visit:
        visit.go(f"/runs/{payment.run.id}")
        visit.press("It did not happen")
        payment.app.worker().drain()
        visit.section("Result").get_by_text("paid by the second call").wait_for()
        assert "run step charge again" in visit.section("Operator actions").inner_text()
        assert visit.wrong == []
    first, second = payment.keys
    assert first == second, "the receiver can recognize the duplicate"


def test_the_bars_of_a_step_and_its_attempt_have_their_real_length(payment, serve, browser):
    with Visit(browser, serve(opened(payment.app))) as visit:
        page = visit.go(f"/runs/{payment.run.id}")
        visit.section("Timeline").get_by_text("As a table").click()
        rows = visit.section("Timeline").locator("tbody").get_by_role("row")
        table = [row.get_by_role("cell").all_inner_texts() for row in rows.all()]
        assert "resolve this step here" in visit.section(HEADING).inner_text()
        assert page.get_by_role("button", name="It happened").count() == 0
        assert visit.wrong == []
    told = {row[0]: row[1:] for row in table}
    first, charge, again = (told[name] for name in ("attempt 1", "charge step", "attempt 2"))
    assert (charge[1], charge[3]) == (first[1], "interrupted"), "the step ended with its attempt"
    assert again[0] >= first[1], "the retry began after the end of the step"


def test_a_viewer_without_permission_cannot_resolve_a_run(shop, payment):
    viewer = client_of(shop.app)
    actor = client_of(shop.app, write=True)
    address = f"/runs/{payment.run.id}/resolve"
    fields = {"step": "charge", "happened": "yes"}

    assert viewer.submit(address, **fields).status_code == 403
    assert actor.post(address, data=fields).status_code == 403, "the request has no CSRF token"
    assert actor.submit(address, step="charge").status_code == 422
    assert actor.submit(address, **fields | {"step": "chrge"}).status_code == 422
    assert actor.submit(address, **fields | {"happened": "no", "result": "1"}).status_code == 422
    assert payment.run.refresh().state == "interrupted"
    retried = actor.submit(f"/runs/{payment.run.id}/retry")
    assert (retried.status_code, "in step &#39;charge&#39;" in retried.text) == (409, True)
    assert list(shop.app.store.list_audit_entries(payment.run.id, 10)) == []

    actor.submit(address, **fields)
    again = actor.submit(address, **fields)

    acts = [act.act for act in shop.app.store.list_audit_entries(payment.run.id, 10)]
    assert acts[:2] == ["redrive", "call step charge done"], "each action is recorded once"
    assert again.status_code == 409
    assert payment.run.refresh().state == "queued"
