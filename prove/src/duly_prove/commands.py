"""Adds `duly demo` and `duly prove` to `duly`, through the entry point `duly.commands`."""

from duly.cli.added_commands import AddedCommand


def commands() -> dict[str, AddedCommand]:
    """Return the commands by name."""
    return {
        "demo": AddedCommand("Watch duly at work.", "duly_prove.demo_command"),
        "prove": AddedCommand(
            "Inject faults into workers and check what survived.", "duly_prove.prove_command"
        ),
    }
