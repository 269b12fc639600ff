"""What every command of the lab needs."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from nearwise.cli.console import reported
from nearwise.conditions import require_extra

PACKAGES = ("matplotlib", "jinja2", "yaml")

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
        require_extra("This command", "lab", *PACKAGES)
        return command(*args, **kwargs)

    return reported(run)
