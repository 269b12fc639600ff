"""The two streams: results on standard output, everything said about them on standard error."""

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import rich.console
import rich.measure
import rich.progress
import rich.table

from nearwise.safe_files import standard_output

T = TypeVar("T")

_WIDEST = 1000  # characters of a table that goes to a file


def _console(*, stderr: bool = False) -> rich.console.Console:
    # Made for each call: sys.stdout may have been replaced. A user's "[a]" or ":b:" is text.
    return rich.console.Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def flowing(text: str | None) -> str:
    """Join the lines of each paragraph, so that help fits any width; examples stay as they are."""
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    return "\n\n".join(p if "\n  " in p else p.replace("\n", " ") for p in paragraphs)


def say(text: str, *, style: str | None = None) -> None:
    """Print a message to standard error, as it stands.

    Parameters
    ----------
    text : str
        What to say.
    style : str, optional
        A rich style, shown on terminals only.
    """
    _console(stderr=True).print(text, style=style, soft_wrap=True)


def show(what: str | rich.table.Table, *, whole: bool = False) -> None:
    """Print a result to standard output.

    Parameters
    ----------
    what : str or rich Table
        Text is printed as it stands; a table is laid out for the terminal's width. In a file or a
        pipe it is as wide as it has to be: nothing is cut there.
    whole : bool, default=False
        Let a table run over the edge of a terminal rather than cut its numbers.
    """
    console = _console()
    if not isinstance(what, str):
        wide = console.options.update(max_width=_WIDEST)
        needs = rich.measure.Measurement.get(console, wide, what)
        if not console.is_terminal:
            console.width = max(console.width, needs.maximum)
        elif whole:
            console.width = max(console.width, needs.minimum)
    with standard_output():
        console.print(what, soft_wrap=isinstance(what, str))


def open_streams() -> None:
    """Open the null device for standard streams that are closed.

    Otherwise the next file to be opened would take their number, and a C library's message would
    go into it. `sys.stdout` stays None, so that a result that cannot be shown is an error.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number
    if sys.stdin is None:
        sys.stdin = os.fdopen(0)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w")


@contextmanager
def steps(label: str, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show what is being done, a step after the other, in one line on standard error.

    Parameters
    ----------
    label : str
        Words before the step.
    quiet : bool, default=False
        Show nothing. Nor is anything shown where standard error is no terminal.

    Yields
    ------
    show : callable
        Takes the words of the next step.
    """
    console = _console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda step: None
        return
    with console.status(label) as status:
        yield lambda step: status.update(f"{label}: {step}")


def progress(items: Sequence[T], label: str, *, quiet: bool = False) -> Iterator[T]:
    """Go through items with a bar on standard error; on terminals only, gone when done.

    Parameters
    ----------
    items : sequence
        What to go through.
    label : str
        Word before the bar.
    quiet : bool, default=False
        No bar.

    Yields
    ------
    item
        Each in turn.
    """
    console = _console(stderr=True)
    yield from rich.progress.track(
        items,
        description=label,
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )
