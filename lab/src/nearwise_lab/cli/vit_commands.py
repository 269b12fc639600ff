"""``nearwise vit``: vision transformers with attention to the nearest tokens."""

from importlib import import_module
from typing import Any

import typer

from nearwise.cli.console import flowing
from nearwise.cli.help import Group
from nearwise_lab.cli.needs import lab_command
from nearwise_lab.cli.vit_bench_command import bench

_MADE = ("train", "summary")


class VitGroup(Group):
    """Commands of `nearwise vit`, with lazy creation of "train" and "summary".

    The options of ``train`` and ``summary`` come from settings that need torch, which ``nearwise
    --help`` shall not wait for.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Name the commands."""
        return [*_MADE, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None where there is none of that name."""
        return _made(cmd_name) if cmd_name in _MADE else super().get_command(ctx, cmd_name)


@lab_command
def _made(name: str) -> Any:
    return import_module(f"nearwise_lab.cli.vit_{name}_command").command()


vit = typer.Typer(
    name="vit",
    cls=VitGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Vision transformers with attention to nearest tokens: train, time, count FLOPs.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

vit.command(help=flowing(bench.__doc__))(bench)
