"""What commands of the lab share: the extra that they need, and the option of the data root."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ParamSpec, TypeVar

import typer

from nearwise.cli.console import reported
from nearwise.conditions import require_extra

DataRootOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Where data sets lie (default: the NEARWISE_DATA variable, then the cache, then a "
        "download).",
    ),
]
ConfigOption = Annotated[Path | None, typer.Option(metavar="FILE.yaml", help="Settings to change.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One setting to change; may be repeated."),
]

P = ParamSpec("P")
R = TypeVar("R")


def lab_command(command: Callable[P, R]) -> Callable[P, R]:
    """Make a command that names the extra where its packages are missing; see `reported`.

    Parameters
    ----------
    command : callable
        A function of the command line.

    Returns
    -------
    command : callable
    """

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        require_extra("This command", "figures", "matplotlib", of="nearwise-lab")
        return command(*args, **kwargs)

    return reported(run)
