"""The dashboard imports only protocols of an application and values; see also import-linter."""

from tests.architecture.test_source import imported, modules

OPEN = (
    *("core", "dashboard", "errors", "limits", "clock", "credentials", "host_names", "version"),
    "api.json_forms",  # values as well: functions of records
)
VALUES = {
    "api.bulk_actions": {"BulkActionRequest", "BulkPage"},
    "api.schedule_views": {"FiringView", "ScheduleView"},
    "observe.logs": {"log_dashboard_link"},
    "observe.metrics": {"CONTENT_TYPE", "exposition"},
    "registry": {"Definition"},
    "store.read_deadline": {"seconds_left", "limit_read_time"},
    "store.reads": {"Inspector", "RunFilter", "ScheduleFilter"},
}
"""The allowed names from modules that also contain other names."""


def test_the_dashboard_imports_only_protocols_and_values():
    names = {
        name.removeprefix("duly.")
        for module, nodes in modules().items()
        if module.startswith("dashboard/")
        for node in nodes
        for name in imported(node)[1:]
        if name.startswith("duly.") and not name.startswith(tuple(f"duly.{part}" for part in OPEN))
    }

    assert names == {f"{module}.{name}" for module, names in VALUES.items() for name in names}
