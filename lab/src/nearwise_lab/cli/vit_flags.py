"""Options made from settings: one for each, by its name, with underscores or dashes."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from typer.core import TyperOption

from nearwise.cli.console import reported
from nearwise.cli.help import Command
from nearwise.training.settings import plain_message
from nearwise_lab.experiments.study.settings import read_config
from nearwise_lab.experiments.vit.settings import NEVER_EXISTED, VitSettings

_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
Run = Callable[[dict[str, Any], set[str], bool], None]


class SettingsCommand(Command):
    """A command that also accepts options as argparse scripts write them.

    ``--d_hidden`` is ``--d-hidden``; a switch may be followed by True or False; a name that never
    existed gets an error with the right one.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments after rewriting them to the usual form."""
        switches = {
            name
            for parameter in self.params
            if isinstance(parameter, TyperOption) and parameter.is_flag
            for name in (*parameter.opts, *parameter.secondary_opts)
        }
        try:
            written = usual_arguments(args, switches)
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=ctx) from None
        return super().parse_args(ctx, written)


def usual_arguments(arguments: list[str], switches: set[str]) -> list[str]:
    """Write arguments with dashes, and `switches`, such as "--augment", without a value.

    Raises ValueError if a name never existed, or the value of a switch is neither true nor false.
    """
    names = (x[2:].partition("=")[0].replace("-", "_") for x in arguments if x[:2] == "--")
    if unknown := [name for name in dict.fromkeys(names) if name in NEVER_EXISTED]:
        hints = (f"There is no --{name}: it is --{NEVER_EXISTED[name]}." for name in unknown)
        raise ValueError(" ".join(hints))
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
        if equals and not _TRUTH[value.lower()]:
            name = "--" + name[5:] if name.startswith("--no-") else "--no-" + name[2:]
        written.append(name)
    return written


def checked(values: dict[str, Any], command: str) -> VitSettings:
    """Make settings; the error of wrong ones names the command's help."""
    try:
        return VitSettings(**values)
    except ValidationError as error:
        message = plain_message(error).rstrip(".")
        raise ValueError(f"{message}. See nearwise vit {command} --help.") from None


def settings_command(name: str, run: Run, settings: type[BaseModel], help_text: str) -> Any:
    """Make a command with one option per setting, in help panels named by their extra "panel".

    It calls ``run(values, given, quiet)``: settings that were given or read from a file, the names
    of those, and whether to show no progress. Its errors are reported, as those of the file are.
    """

    @reported
    def command(ctx: typer.Context, config: Path | None, quiet: bool, **options: Any) -> None:
        values: dict[str, Any] = {} if config is None else read_config(config)
        for option, value in options.items():
            if getattr(ctx.get_parameter_source(option), "name", "DEFAULT") != "DEFAULT":
                values[option] = value
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
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command(name, cls=SettingsCommand, help=help_text)(command)
    return typer.main.get_command(app)


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
