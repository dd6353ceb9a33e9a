"""All pages of the reference, by the names of their files."""

from pathlib import Path

from tools.reference.commands import commands_page
from tools.reference.python import integrations_page, python_page
from tools.reference.tables import (
    errors_page,
    fault_points_page,
    limits_page,
    metrics_page,
    settings_page,
)

FOLDER = Path(__file__).parents[2] / "docs" / "reference"


def pages() -> dict[str, str]:
    """Return the text of every page, by the name of its file."""
    return {
        "python.md": python_page(),
        "integrations.md": integrations_page(),
        "command_line.md": commands_page(),
        "settings.md": settings_page(),
        "limits.md": limits_page(),
        "errors.md": errors_page(),
        "metrics.md": metrics_page(),
        "fault_points.md": fault_points_page(),
    }
