"""Parts common to the lab's commands: the required extra, and the data-root option."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec, TypeVar

import typer

from nearwise.cli.console import reported
from nearwise.conditions import require_extra

if TYPE_CHECKING:
    from nearwise_lab.experiments import Record

DataRootOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder of data sets. Default: the NEARWISE_DATA variable, then the cache, then a "
        "download.",
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
    """Make a command that names the extra where its packages are missing; see `reported`."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        require_extra("This command", "figures", "matplotlib", of="nearwise-lab")
        return command(*args, **kwargs)

    return reported(run)


NAMED = 3  # methods named of those that failed for one reason


def refuse_failed(records: "Sequence[Record]") -> None:
    """Raise ValueError if rows failed, with counts and methods by reason."""
    failed = [record for record in records if record.status == "failed"]
    groups: dict[str, list[str]] = {}
    for record in failed:
        groups.setdefault(record.reason or "no reason given", []).append(record.method)
    lines = []
    for reason, methods in groups.items():
        names = list(dict.fromkeys(methods))
        named = ", ".join([*names[:NAMED], *(["..."] if len(names) > NAMED else [])])
        lines.append(f"{len(methods)} row{'s' * (len(methods) > 1)} ({named}): {reason}")
    if failed:
        raise ValueError(
            f"{len(failed)} of {len(records)} rows failed; the others are kept, and running it "
            f"again tries these again. {' | '.join(lines)}"
        )
