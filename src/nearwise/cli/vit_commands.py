"""``nearwise vit``: vision transformers whose tokens attend to their nearest tokens."""

import typer

vit = typer.Typer(
    name="vit",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Vision transformers whose tokens attend to their nearest tokens.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
