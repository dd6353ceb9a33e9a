"""The script of the pages writes durations and distances in time as the server does."""

import pytest

from duly.core.time_text import coarse_duration, duration, relative
from duly.dashboard.assets import assets
from tests.core.test_time_text import COARSE, DISTANCES, DURATIONS, NOW, SECOND

pytestmark = pytest.mark.browser
EVERY = sorted({size for size, _ in DISTANCES + COARSE + DURATIONS})
SIZES = [abs(size) for size in EVERY]


def test_the_script_and_the_server_write_the_same_words(browser):
    page = browser.new_page()
    page.add_script_tag(content=assets()["times.js"].content.decode())

    def words(function, sizes):
        return page.evaluate(f"sizes => sizes.map((size) => times.{function}(size))", sizes)

    assert words("relative", [size / SECOND for size in EVERY]) == [
        relative(NOW + size, NOW) for size in EVERY
    ]
    assert words("coarse", [size / SECOND for size in SIZES]) == list(map(coarse_duration, SIZES))
    assert words("duration", SIZES) == list(map(duration, SIZES))
    page.close()
