"""``nearwise field``: neural fields of images, and what they represent."""

import typer

from nearwise.cli.field_compare_command import compare
from nearwise.cli.field_train_command import train

field = typer.Typer(
    name="field",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Neural fields: images as tokens, trained without labels.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

field.command("train")(train)
field.command("compare")(compare)
