"""``nearwise field``: neural fields of images, and what they represent."""

import typer

from nearwise.cli.field_train_command import train

field = typer.Typer(
    name="field",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Neural fields: images as tokens, trained without labels.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@field.callback()
def _group() -> None:
    """Keep the group a group while it has one command."""


field.command("train")(train)
