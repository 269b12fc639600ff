"""``nearwise field``: neural fields of images, and their representations."""

import typer

from nearwise.cli.console import flowing
from nearwise_lab.cli.field_compare_command import compare
from nearwise_lab.cli.field_train_command import train

field = typer.Typer(
    name="field",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Neural fields: images as tokens, trained without labels.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

field.command("train", help=flowing(train.__doc__))(train)
field.command("compare", help=flowing(compare.__doc__))(compare)
