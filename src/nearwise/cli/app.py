"""Entry point of the command line: commands and global options."""

import sys
import warnings
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from nearwise import __version__
from nearwise.cli.commands.change import add, compact, history, relabel, remove, undo
from nearwise.cli.commands.clean import clean
from nearwise.cli.commands.embed import embed
from nearwise.cli.commands.evaluate import evaluate
from nearwise.cli.commands.explain import explain
from nearwise.cli.commands.fit import fit
from nearwise.cli.commands.inspect import inspect
from nearwise.cli.commands.move import move
from nearwise.cli.commands.predict import predict
from nearwise.cli.commands.serve import key, serve
from nearwise.cli.commands.verify import verify
from nearwise.cli.console import flowing, in_flags, note_words, open_streams, say, show_tracebacks
from nearwise.cli.help import Command, Group
from nearwise.cli.usage import plain_usage_errors

_OF_THE_LAB = ("compare", "datasets", "demo", "experiment", "field", "probe", "report", "vit")


class _Commands(Group):
    """Command group with nearwise's own error messages."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command; for a missing command of nearwise-lab, explain its installation."""
        if args[0] in _OF_THE_LAB and self.get_command(ctx, args[0]) is None:
            ctx.fail(
                f"{args[0]!r} comes with the lab, a package of its own: "
                "pip install 'nearwise-lab[figures,pdf]' (from a clone './lab[figures,pdf]')."
            )
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **more: Any) -> Any:
        """Parse the global options."""
        with plain_usage_errors():
            return super().make_context(*args, **more)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with plain_usage_errors(ctx):
            return super().invoke(ctx)


app = typer.Typer(
    name="nearwise",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


_PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "With a table of your own": (fit, predict, explain, evaluate, clean, inspect, embed, verify),
    "What a model remembers": (add, remove, relabel, history, undo, compact, move),
    "Over HTTP": (serve, key),
}
for _panel, _commands in _PANELS.items():
    for _command in _commands:
        app.command(cls=Command, rich_help_panel=_panel, help=flowing(_command.__doc__))(_command)


@cache
def _add_plugins() -> None:
    """Add the commands of installed packages: entry points that take the app."""
    for plugin in entry_points(group="nearwise.commands"):
        plugin.load()(app)
    _help_plainly(app)


def _help_plainly(app: typer.Typer) -> None:
    """Give commands and groups of an app plain help, unless they have a class of their own."""
    for command in app.registered_commands:
        command.cls = Command if command.cls is TyperCommand else command.cls
    for group in app.registered_groups:
        if group.typer_instance is not None:
            own = group.typer_instance.info
            own.cls = Group if getattr(own.cls, "value", own.cls) is TyperGroup else own.cls
            _help_plainly(group.typer_instance)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"nearwise {__version__}")
        raise typer.Exit


_VERSION = typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
_HELP = """Predict classes and numbers by attention over nearest neighbors, and show the neighbors.

A model has two parts. The base is an ordinary model, such as a random forest. The memory holds the
training rows, among which the neighbors of a new row are found.

[bold]Examples[/bold]
  nearwise fit train.csv --target species --out iris.model
  nearwise predict iris.model new.csv --out predictions.csv --proba

Every command has its own --help. Tables are CSV, Parquet, Excel, JSON or npz. - is standard input
or output. Exit codes: 0 success, 1 a bug in nearwise, 2 an error in the input, 130 stopped by
Ctrl-C.
"""


@app.callback(help=flowing(_HELP))
def _start(
    version: Annotated[bool, _VERSION] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    show_tracebacks(debug)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; ``--debug`` is accepted anywhere before a ``--``."""
    open_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = words[: words.index("--")] if "--" in words else words
    if "--debug" in options:
        words.remove("--debug")
        words.insert(0, "--debug")
    note_words(words)
    _said.clear()
    warnings.showwarning = _say_warning
    _add_plugins()
    app(args=words, prog_name="nearwise")


_said: set[str] = set()  # warnings already printed, as passes over a table repeat them


def _say_warning(message: Warning | str, *rest: object, **more: object) -> None:
    """Print a warning once, without the line of code."""
    if str(message) in _said:
        return
    _said.add(str(message))
    say(f"warning: {in_flags(str(message))}", style="yellow")
