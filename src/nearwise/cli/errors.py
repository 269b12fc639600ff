"""How a problem reaches the user: one clear line and an exit code, the traceback on request."""

import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer

from nearwise.cli.console import say

USER_ERROR = 2
BUG = 1
INTERRUPTED = 130
BROKEN_PIPE = 141

# What the library raises for a user's mistake: bad values, files, folders, missing extras.
# TypeError, KeyError, AttributeError and the rest are ours.
_USER_ERRORS = (ValueError, OSError, ImportError, MemoryError)

P = ParamSpec("P")
R = TypeVar("R")


class _Settings:
    """What the global options set for the command that follows."""

    debug = False


def show_tracebacks(value: bool) -> None:
    """Turn tracebacks on or off for the commands of this process."""
    _Settings.debug = value


def reported(command: Callable[P, R]) -> Callable[P, R]:
    """Make a command end with a message and an exit code instead of a traceback.

    Returns `command`, callable: the same, but a user's mistake prints one message and exits 2,
    Ctrl-C exits 130, an error of ours exits 1 and asks for a report. With ``--debug`` the traceback
    comes first.

    Parameters
    ----------
    command : callable
        A function of the command line.
    """

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            say("Stopped.")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # The reader (head, less) has gone. Python would complain once more at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(BROKEN_PIPE) from None
        except _USER_ERRORS as error:
            _show_traceback()
            say(f"error: {_describe(error)}", style="bold red")
            raise typer.Exit(USER_ERROR) from None
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            _show_traceback()
            hint = (
                "" if _Settings.debug else " Run it again with --debug and report what it prints."
            )
            say(
                f"error: this is a fault of nearwise: {type(error).__name__}: {error}.{hint}",
                style="bold red",
            )
            raise typer.Exit(BUG) from None

    return run


def _show_traceback() -> None:
    if _Settings.debug:
        traceback.print_exc()


def _describe(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return f"out of memory ({error}). Use fewer rows, or a machine with more memory."
    if isinstance(error, OSError) and error.strerror:
        # plain system errors read "[Errno 28] No space left on device: 'file'"
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    return str(error) or type(error).__name__
