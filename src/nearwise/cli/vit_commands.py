"""``nearwise vit``: vision transformers whose tokens attend to their nearest tokens."""

from typing import Any

import typer
from typer.core import TyperGroup


class VitGroup(TyperGroup):
    """Commands of `nearwise vit`, of which some are made only when they are asked for.

    The options of ``train`` come from settings that need torch, which ``nearwise --help`` shall
    not wait for.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Name the commands."""
        return ["train", *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None where there is none of that name."""
        if cmd_name != "train":
            return super().get_command(ctx, cmd_name)
        from nearwise.cli.vit_train_command import train_command

        return train_command()


vit = typer.Typer(
    name="vit",
    cls=VitGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Vision transformers whose tokens attend to their nearest tokens.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
