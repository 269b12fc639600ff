"""``nearwise vit``: vision transformers whose tokens attend to their nearest tokens."""

from typing import Any

import typer
from typer.core import TyperGroup

from nearwise.cli.console import flowing
from nearwise_lab.cli.needs import lab_command
from nearwise_lab.cli.vit_bench_command import bench


class VitGroup(TyperGroup):
    """Commands of `nearwise vit`, some of which are made only when they are requested.

    The options of ``train`` and ``summary`` come from settings that need torch, which ``nearwise
    --help`` shall not wait for.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Name the commands."""
        return ["train", "summary", *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None where there is none of that name."""
        if cmd_name == "summary":
            return _summary()
        return _train() if cmd_name == "train" else super().get_command(ctx, cmd_name)


@lab_command
def _summary() -> Any:
    from nearwise_lab.cli.vit_summary_command import summary_command

    return summary_command()


@lab_command
def _train() -> Any:
    from nearwise_lab.cli.vit_train_command import train_command

    return train_command()


vit = typer.Typer(
    name="vit",
    cls=VitGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Vision transformers whose tokens attend to their nearest tokens.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

vit.command(help=flowing(bench.__doc__))(bench)
