"""Help of the commands: options in panels, each with its text beside it, readable at 80 columns."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from nearwise.names import did_you_mean

_WIDEST = 110  # characters of a line of help
_NAMES = 26  # characters for the names of options; a longer one gets a line of its own
_PANEL = "rich_help_panel"  # of commands, and of options that are not named here
_ARGUMENTS, _RUN = "Arguments", "Run"
# Names of the options in each panel; options of plugins with other names are in the last one.
OPTIONS = {
    "Data": "target task drop keep category number date text keep_words weight groups time_column "
    "show skip_unlabelled header sheet ids rows new_only new_classes",
    "Images": "image_size color skip_damaged resize",
    "Model": "preset estimator embedder epochs n_neighbors cv label_noise class_prior noise judge "
    "store space trusted capacity eviction refresh follow",
    "Output": "out overwrite proba explain neighbors output quantiles copy form json_file report "
    "whole top scores as_json",
    "Trust": "coverage max_risk sets confidence novelty resamples",
    "Address": "host port no_page",
    "Access": "keys allow_host allow_origin read_only scope",
    "Limits": "max_queue max_rows max_body deadline",
    _RUN: "seed resume verbose quiet key forget_classes accept_lost_changes",
}
_PANEL_OF = {name: panel for panel, names in OPTIONS.items() for name in names.split()}


class Command(TyperCommand):
    """Command with plain help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        _print_help(self, ctx)


class Group(TyperGroup):
    """Group of commands with plain help."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command; for an unknown one, suggest the nearest."""
        if self.get_command(ctx, args[0]) is None:
            hint = did_you_mean(args[0], self.list_commands(ctx))
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        _print_help(self, ctx)


def _print_help(command: Any, ctx: Any) -> None:
    """Print help without boxes: options stand in panels, arguments first."""
    console = Console(highlight=False, emoji=False)
    console.width = min(console.width, _WIDEST)
    usage = command.get_usage(ctx).strip().replace("{", "").replace("}", "")
    console.print(Text(usage, style="bold"))
    if command.help:
        console.print()
        _print_lines(console, Text.from_markup(command.help.strip(), emoji=False))
    for title, entries in _panels(command, ctx).items():
        console.print()
        console.print(Text(title, style="bold"))
        _print_entries(console, entries)


_Entries = list[tuple[Text, Text]]


def _panels(command: Any, ctx: Any) -> dict[str, _Entries]:
    """Collect commands and options by panel; options without one are those of the run."""
    found: dict[str, _Entries] = {}
    for name in getattr(command, "list_commands", lambda ctx: [])(ctx):
        one = command.get_command(ctx, name)
        if one is not None and not one.hidden:
            first = (one.help or "").strip().split("\n\n")[0].replace("\n", " ")
            entry = Text(name, style="cyan"), Text.from_markup(first, emoji=False)
            found.setdefault(getattr(one, _PANEL, None) or "Commands", []).append(entry)
    for param in command.get_params(ctx):
        if (record := param.get_help_record(ctx)) is not None:  # None: hidden
            is_argument = param.param_type_name == "argument"
            own = getattr(param, _PANEL, None) or _PANEL_OF.get(param.name, _RUN)
            panel = _ARGUMENTS if is_argument else own
            found.setdefault(panel, []).append(_described(param, *record, is_argument=is_argument))
    return dict(sorted(found.items(), key=lambda panel: _rank(panel[0])))


def _rank(panel: str) -> float:
    """Rank of a panel: arguments first, those of plugins before the run."""
    order = [_ARGUMENTS, *OPTIONS]
    return order.index(panel) if panel in order else order.index(_RUN) - 0.5


def _described(param: Any, name: str, said: str, *, is_argument: bool) -> tuple[Text, Text]:
    """Return the name of a parameter with its value, and its help."""
    own = param.help or ""
    text = Text.from_markup(own, emoji=False)
    more = said.removeprefix(own).strip()
    if more == "[required]":
        text.append("" if is_argument else " Required.")
    elif more:
        text.append(f" {more}", style="dim")
    name = (param.metavar or name) if is_argument else name
    for old, new in (("<", ""), (">", ""), (" / ", "/"), ("int range", "N"), ("float range", "X")):
        name = name.replace(old, new)
    return Text(name, style="cyan"), text


def _print_entries(console: Console, entries: Iterable[tuple[Text, Text]]) -> None:
    entries = list(entries)
    width = min(max(name.cell_len for name, _ in entries), _NAMES)
    indent = width + 4
    for name, text in entries:
        line = Text("  ") + name
        if name.cell_len > width:
            _print_line(console, line)
            line = Text()
        for part in text.wrap(console, console.width - indent) or [Text()]:
            part.rstrip()
            line.append(" " * (indent - line.cell_len))
            _print_line(console, line + part)
            line = Text()


def _print_lines(console: Console, text: Text) -> None:
    for line in text.wrap(console, console.width):
        line.rstrip()
        _print_line(console, line)


def _print_line(console: Console, line: Text) -> None:
    console.print(line, no_wrap=True, overflow="ignore", crop=False)
