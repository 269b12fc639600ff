"""Output of the command line: messages, progress, tables, user errors and internal errors."""

import ast
import functools
import importlib
import inspect
import json
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import rich.console
import rich.measure
import rich.table
import typer
from rich.progress import SpinnerColumn, TextColumn

from nearwise.cli.tables import tab_separated
from nearwise.cli.wrapping import wrapped
from nearwise.conditions import PROGRAM
from nearwise.progress_bar import ProgressBar
from nearwise.safe_files import plain, standard_output

if TYPE_CHECKING:
    from nearwise.cli.explaining import Explained

T = TypeVar("T")


def _console(*, stderr: bool = False) -> rich.console.Console:
    # Made per call, since sys.stdout may be replaced. A user's "[a]" or ":b:" is plain text.
    return rich.console.Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def flowing(text: str | None) -> str:
    """Join the lines of each help paragraph, so that it fits any width; examples are unchanged."""
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    return "\n\n".join(p if "\n  " in p else p.replace("\n", " ") for p in paragraphs)


def typed(*words: object) -> str:
    """Return a nearwise command in shell syntax, with quotes where needed."""
    return shlex.join([PROGRAM, *map(str, words)])


def note_words(words: Sequence[str]) -> None:
    """Store the arguments of the command line."""
    _Settings.words = tuple(words)


def typed_again(option: str, value: str | None = None) -> str:
    """Return the present command with an added or changed option."""
    words = list(_Settings.words)
    for at, word in enumerate(words):
        if word == option or word.startswith(f"{option}="):
            del words[at : at + (2 if word == option and value is not None else 1)]
            break
    end = words.index("--") if "--" in words else len(words)
    words[end:end] = [option] if value is None else [option, value]
    return typed(*words)


def say(text: str, *, style: str | None = None) -> None:
    """Print a message to standard error, without markup; the style shows on terminals only.

    On a terminal it wraps at blanks, and a command at its end gets a line of its own. In a file
    every line of the message stays one line.
    """
    console = _console(stderr=True)
    with console.capture() as said:
        _print(console, text, style)
    start = "\r" if console.is_terminal else ""  # over the ^C that a terminal shows
    sys.stderr.write(start + said.get())  # a progress bar takes this, and shows it above itself


def show(result: str | rich.table.Table, *, whole: bool = False, titled: bool = False) -> None:
    """Print a result to standard output.

    On a terminal a text wraps at blanks, and a table is fitted to the width; `whole` allows it to
    exceed the width rather than cut numbers. In a file or a pipe a table is tab-separated text
    with a header; its title is a line before it only if `titled`.
    """
    console = _console()
    with standard_output() as stream:
        if isinstance(result, str):
            _print(console, result)
        elif not console.is_terminal:
            stream.write((f"{result.title}\n" if titled else "") + tab_separated(result))
        elif result.row_count:
            if whole:
                needs = rich.measure.Measurement.get(console, console.options, result)
                console.width = max(console.width, needs.minimum)
            console.print(result)


def terminal_width() -> int | None:
    """Return the width of the terminal that shows results; None in a file or a pipe."""
    console = _console()
    return console.width if console.is_terminal else None


def show_below(result: str | rich.table.Table) -> None:
    """Print one of several results after an empty line; a table has its title in a file too."""
    show("")
    show(result, titled=True)


def show_cards(found: "Sequence[Explained]") -> None:
    """Print cards of answers; in a file or a pipe as one tab-separated table."""
    from nearwise.cli.card_view import as_text, drawn, headline

    console = _console()
    with standard_output() as stream:
        if not console.is_terminal:
            stream.write(as_text(found))
            return
        for one in found:
            table, note = drawn(one, console.width)
            console.print(one.name, style="dim")
            console.print(headline(one))
            console.print(table)
            _print(console, note, "dim")
            console.print()


def show_json(facts: Any) -> None:
    """Print facts as JSON to standard output."""
    text = json.dumps(plain(facts), indent=2, ensure_ascii=False)
    with standard_output() as stream:
        stream.write(f"{text}\n")


def _print(console: rich.console.Console, text: str, style: str | None = None) -> None:
    if console.is_terminal:
        text = "\n".join(wrapped(text, console.width))
    console.print(text, style=style, soft_wrap=True)


def open_streams() -> None:
    """Open the null device for standard streams that are closed.

    Otherwise the next opened file would get their descriptor, and messages of C libraries would go
    into it. `sys.stdout` stays None, so that a result that cannot be shown is an error.
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
    """Show the current step after a label, in one line on standard error.

    Yields a function that takes the name of the next step.
    """
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False)
    with ProgressBar(*columns, console=_console(stderr=True), disable=quiet) as bar:
        task = bar.add_task(label, total=None)
        yield lambda step: bar.update(task, description=f"{label}: {step}")


def load_library() -> None:
    """Import the library, which takes seconds; a terminal shows that it starts."""
    if "nearwise.estimators" not in sys.modules:
        with steps("starting", quiet=_Settings.quiet):
            importlib.import_module("nearwise.estimators")


def progress(
    items: Iterable[T], label: str, *, total: int | None = None, quiet: bool = False
) -> Iterator[T]:
    """Iterate with a progress bar on standard error, or with progress lines in a file.

    `total` is the number of items, if `len` is not available.
    """
    with ProgressBar(console=_console(stderr=True), disable=quiet) as bar:
        yield from bar.track(items, total=total, description=label)


USER_ERROR = 2
BUG = 1
INTERRUPTED = 130
BROKEN_PIPE = 141

# Errors of the library for user mistakes: bad values, files, folders, missing extras.
# TypeError, KeyError, AttributeError and others are bugs.
USER_ERRORS = (ValueError, OSError, ImportError, MemoryError)

P = ParamSpec("P")
R = TypeVar("R")


class _Settings:
    """Global options, and the options and arguments of the running command."""

    debug = quiet = False
    options: frozenset[str] = frozenset()
    words: tuple[str, ...] = ()
    lost = ""
    step = ""


def if_stopped(lost: str) -> None:
    """Set what is said on Ctrl-C from now on: what is lost, and what to type next."""
    _Settings.lost = lost


def note_step(name: str) -> None:
    """Set the step that is named on Ctrl-C, of a fit within a command."""
    _Settings.step = name


def _at() -> str:
    return f" in {_Settings.step}" if _Settings.step else ""


def show_tracebacks(value: bool) -> None:
    """Enable or disable tracebacks for the commands of this process."""
    _Settings.debug = value


def reported(command: Callable[P, R]) -> Callable[P, R]:
    """Decorate a command to end with a message and an exit code instead of a traceback.

    A user error prints one message and exits with 2, Ctrl-C exits with 130, an internal error exits
    with 1 and requests a report. With ``--debug`` the traceback is printed first.
    """

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        _Settings.options = frozenset(inspect.signature(command).parameters)
        _Settings.lost = _Settings.step = ""
        _Settings.quiet = bool(kwargs.get("quiet"))
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            say(f"Stopped{_at()}. {_Settings.lost}".rstrip())
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # The reader (head, less) has closed the pipe; avoid a second error at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(BROKEN_PIPE) from None
        except USER_ERRORS as error:
            _show_traceback()
            say(f"error: {describe(error)}", style="bold red")
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


def describe(error: BaseException) -> str:
    """Return the message for an error that stopped a command."""
    if isinstance(error, MemoryError):
        return f"out of memory ({error}). Use fewer rows, or a machine with more memory."
    if isinstance(error, OSError) and error.strerror:
        # plain system errors read "[Errno 28] No space left on device: 'file'"
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    return in_flags(str(error)) or type(error).__name__


_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_WISH = re.compile(rf"columns=\{{({_QUOTED}): '([a-z ]+)(?::([^']+))?'\}}")
_PARAMETER = re.compile(rf"\b([a-z_]+)=({_QUOTED}|\[[^\]]*\]|[\w.+-]*\w(?![\w\[(]))")
# options with another name than their parameter
_OPTIONS = {"random_state": "seed", "label_noise": "noise"}
# "color='rgb' (--color rgb)": the option stands there already
_NAMED_TWICE = re.compile(r"(--([a-z-]+)(?: [\w.,+-]+)?) \([^()]*--(?:no-)?\2\b[^()]*\)")
_SWITCHES = {"True": "--", "False": "--no-"}
_OF_FIT = ("cv", "estimator")  # messages of other commands name these options of 'nearwise fit' too


def in_flags(text: str) -> str:
    """Replace Python parameters in a message by the options of the running command."""
    options = _Settings.options

    def wish(found: re.Match[str]) -> str:
        name, use = ast.literal_eval(found[1]), found[2]
        value = name if found[3] is None else f"{name}={found[3]}"  # a date's format
        return f"--{'drop' if use == 'left out' else use} {shlex.quote(value)}"

    def flag(found: re.Match[str]) -> str:
        name = found[1] if found[1] in options else _OPTIONS.get(found[1], "")
        if name not in options and (name := found[1]) not in _OF_FIT:
            return found[0]
        if found[2] in _SWITCHES:
            return _SWITCHES[found[2]] + name.replace("_", "-")
        value = ast.literal_eval(found[2]) if found[2][0] in "'\"" else found[2].lower()
        if (name, value) == ("cv", "latest"):
            return "--time"
        if value.startswith("["):
            value = value[1:-1].replace(" ", "")
        return f"--{name.replace('_', '-')} {shlex.quote(value)}"

    if "drop" in options:
        text = _WISH.sub(wish, text)
    written = _PARAMETER.sub(flag, text)
    return _NAMED_TWICE.sub(r"\1", written) if written != text else text
