"""Usage errors, such as an unknown option: one paragraph, as all other errors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from nearwise.cli.console import USER_ERROR, say
from nearwise.conditions import PROGRAM
from nearwise.names import did_you_mean

_UsageError: Any = typer.BadParameter.__base__  # of click, or of typer's own copy of it
_OF_PYDANTIC = re.compile(r"Value error, |, unable to parse .*")


@contextmanager
def plain_usage_errors(ctx: Any = None) -> Iterator[None]:
    """Print usage errors within the block as plain text, and exit with 2.

    `ctx` is the context of the group of commands; some errors do not know their command.
    """
    try:
        yield
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command: its help
            raise
        at = PROGRAM if ctx is None else f"{PROGRAM} {ctx.invoked_subcommand}"
        command = at if error.ctx is None else error.ctx.command_path
        say(f"error: {_message(error)} Help: {command} --help", style="bold red")
        raise typer.Exit(USER_ERROR) from None


def _message(error: Any) -> str:
    if hasattr(error, "possibilities"):  # an unknown option
        known = [one for param in error.ctx.command.params for one in param.opts if one[0] == "-"]
        return f"No such option: {error.option_name}.{did_you_mean(error.option_name, known)}"
    text = _OF_PYDANTIC.sub("", error.format_message())
    return text if text.endswith(("?", ".")) else f"{text}."
