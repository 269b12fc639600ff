"""The command line's front door: the list of commands, and how errors reach a user."""

import typer

app = typer.Typer(no_args_is_help=True)


def main() -> None:
    """Run the command line."""
    app()
