"""The names that code of other systems may import, besides `duly` and `duly.errors`.

Each name has a section and an example in `docs/how-to/extending.md`. The modules that define them
are internal.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duly.async_threads import run_in_thread
    from duly.carrier import Carrier, CarrierMessage, CarrierSendFailed, ResendPolicy
    from duly.extend.carrier_worker import CarrierWorker
    from duly.extend.observation import EndedAttempt, on_attempt_end, report_error
    from duly.extend.schema import migrate_schema, schema_versions
    from duly.extend.worker_settings import check_worker_settings
    from duly.worker.embedded_worker import EmbeddedWorker

__all__ = [  # noqa: RUF022 - grouped by what they are for
    # Let workers of another engine run tasks.
    "Carrier",
    "CarrierMessage",
    "CarrierSendFailed",
    "CarrierWorker",
    "ResendPolicy",
    # Run a worker in a process of another program.
    "EmbeddedWorker",
    "check_worker_settings",
    "run_in_thread",
    # Learn what happens, and report errors.
    "EndedAttempt",
    "on_attempt_end",
    "report_error",
    # Make the tables with another migration tool.
    "migrate_schema",
    "schema_versions",
]

# A name's module is loaded when the name is first used, as in `duly` itself. So a program that only
# subscribes to events does not import the worker.
_MODULES = {
    **dict.fromkeys(
        ("Carrier", "CarrierMessage", "CarrierSendFailed", "ResendPolicy"), "duly.carrier"
    ),
    "CarrierWorker": "duly.extend.carrier_worker",
    "EmbeddedWorker": "duly.worker.embedded_worker",
    "check_worker_settings": "duly.extend.worker_settings",
    "run_in_thread": "duly.async_threads",
    **dict.fromkeys(("EndedAttempt", "on_attempt_end", "report_error"), "duly.extend.observation"),
    **dict.fromkeys(("migrate_schema", "schema_versions"), "duly.extend.schema"),
}


if not TYPE_CHECKING:  # A type checker would accept every name.

    def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever has that name
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(_MODULES[name]), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
