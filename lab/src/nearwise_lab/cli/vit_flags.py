"""Options made from settings: one for each, by its name, with underscores or dashes."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.core import TyperCommand, TyperOption

from nearwise.cli.console import reported

_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class SettingsCommand(TyperCommand):
    """A command whose options may be written as scripts for argparse write them.

    ``--d_hidden`` is ``--d-hidden``; a switch may be followed by True or False; a name that never
    existed, in `renamed`, gets an error with the right one.
    """

    renamed: Mapping[str, str] = {}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments after writing them the usual way."""
        try:
            written = usual_arguments(args, self._switches(), self.renamed)
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=ctx) from None
        return super().parse_args(ctx, written)

    def _switches(self) -> set[str]:
        return {
            name
            for parameter in self.params
            if isinstance(parameter, TyperOption) and parameter.is_flag
            for name in (*parameter.opts, *parameter.secondary_opts)
        }


def usual_arguments(
    arguments: list[str], switches: set[str], renamed: Mapping[str, str]
) -> list[str]:
    """Write arguments with dashes, and switches without a value.

    Parameters
    ----------
    arguments : list of str
    switches : set of str
        Options without a value, such as "--augment" and "--no-augment".
    renamed : mapping of str to str
        Names that never existed, and the right ones.

    Raises
    ------
    ValueError
        If a name never existed, or a switch is given a value that is neither true nor false.
    """
    if unknown := _renamed(arguments, renamed):
        raise ValueError(" ".join(f"There is no --{x}: it is --{renamed[x]}." for x in unknown))
    written: list[str] = []
    left = list(arguments)
    while left:
        argument = left.pop(0)
        if argument == "--":
            return [*written, argument, *left]
        if not argument.startswith("--"):
            written.append(argument)
            continue
        name, equals, value = argument.partition("=")
        name = name.replace("_", "-")
        if name not in switches:
            written.append(name + equals + value)
            continue
        if not equals and left and not left[0].startswith("-"):
            equals, value = "=", left.pop(0)
        if equals and value.lower() not in _TRUTH:
            raise ValueError(f"{name} is on or off; {value!r} is neither True nor False.")
        off = bool(equals) and not _TRUTH[value.lower()]
        written.append(_opposite(name) if off else name)
    return written


def _renamed(arguments: list[str], renamed: Mapping[str, str]) -> list[str]:
    """Names among the arguments that never existed, each once."""
    options = (x[2:].partition("=")[0].replace("-", "_") for x in arguments if x[:2] == "--")
    return [name for name in dict.fromkeys(options) if name in renamed]


def _opposite(name: str) -> str:
    return "--" + name[5:] if name.startswith("--no-") else "--no-" + name[2:]


Run = Callable[[dict[str, Any], set[str], bool], None]


def settings_command(
    name: str, run: Run, settings: type[BaseModel], *, text: str, wrong: Mapping[str, str]
) -> Any:
    """Make a command with an option for every setting.

    Parameters
    ----------
    name : str
    run, settings
        As in `command_of`.
    text : str
        Its help.
    wrong : mapping of str to str
        Names that never existed, and the right ones.
    """

    class Command(SettingsCommand):
        renamed = wrong

    app = typer.Typer(
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command(name, cls=Command, help=text)(command_of(run, settings))
    return typer.main.get_command(app)


def command_of(run: Run, settings: type[BaseModel]) -> Callable[..., None]:
    """Make a function for typer with an option for every setting.

    Parameters
    ----------
    run : callable
        ``run(values, given, quiet)``: settings that were given or read from a file, the names of
        those, and whether to show no progress. Its errors are reported, as those of the file are.
    settings : pydantic model
        Fields have a description and, as extra, their panel of the help.
    """

    @reported
    def command(ctx: typer.Context, config: Path | None, quiet: bool, **options: Any) -> None:
        values: dict[str, Any] = {}
        if config is not None:
            from nearwise_lab.experiments.study.settings import read_config

            values = read_config(config)
        for name, value in options.items():
            if getattr(ctx.get_parameter_source(name), "name", "DEFAULT") != "DEFAULT":
                values[name] = value
        run(values, set(values), quiet)

    config = typer.Option("--config", metavar="FILE.yaml", help="Settings; options override them.")
    quiet = typer.Option("--quiet", "-q", help="No progress and no notes.")
    parameters = [
        _parameter("ctx", typer.Context),
        *(_option(name, field) for name, field in settings.model_fields.items()),
        _parameter("config", Annotated[Path | None, config], None),
        _parameter("quiet", Annotated[bool, quiet], False),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    extra: Any = field.json_schema_extra or {}
    dashed = "--" + name.replace("_", "-")
    declared = f"{dashed}/--no-{dashed[2:]}" if field.annotation is bool else dashed
    text, metavar = field.description or "", None
    if get_origin(field.annotation) is Literal:  # as a metavar they would push the name aside
        choices = ", ".join(map(str, get_args(field.annotation)))
        text, metavar = f"{text} One of: {choices}.".strip(), "NAME"
    option = typer.Option(declared, help=text, metavar=metavar, rich_help_panel=extra.get("panel"))
    return _parameter(name, Annotated[field.annotation, option], field.default)


def _parameter(
    name: str, annotation: Any, default: Any = inspect.Parameter.empty
) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)
