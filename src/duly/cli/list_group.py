"""Groups of commands about one kind of object: `duly runs` alone means `duly runs list`."""

from typing import Any

import click

_DEFAULT = "list"


class ListGroup(click.Group):
    """A group that runs `list` if no subcommand is given."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - click's
        options.setdefault("subcommand_metavar", "[COMMAND] [ARGS]...")
        options.setdefault("epilog", f"Default command: {_DEFAULT}.")
        super().__init__(*args, **options)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Options may precede the subcommand, so its name anywhere selects it.
        named = {*self.commands, *ctx.help_option_names}.intersection(args)
        lists = not named and (not args or args[0].startswith("-"))
        # Shell completion must offer all subcommands of the group.
        if lists and not ctx.resilient_parsing:
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)
