"""The task that sees the end of an application's event loop."""

import asyncio
import gc
import warnings

import pytest

from duly.worker.runners.loop_shutdown import LoopShutdownMonitor

pytestmark = pytest.mark.surface


def test_a_loop_that_is_closed_at_once_leaves_no_warning():
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _loop, _context: None)  # The task is destroyed while pending.
    monitor = LoopShutdownMonitor(loop, lambda: None)
    monitor.begin()
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert monitor.is_shutting_down()
        del monitor
        gc.collect()

    assert [str(each.message) for each in found if each.category is RuntimeWarning] == []


def test_a_loop_that_runs_is_not_shutting_down_until_its_tasks_are_cancelled():
    async def main() -> LoopShutdownMonitor:
        monitor = LoopShutdownMonitor(asyncio.get_running_loop(), lambda: None)
        monitor.begin()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not monitor.is_shutting_down()
        return monitor

    assert asyncio.run(main()).is_shutting_down()
