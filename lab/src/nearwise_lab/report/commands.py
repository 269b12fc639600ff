"""Commands and conditions, as they were recorded and as they may be run again."""

from collections.abc import Sequence
from typing import Any

from nearwise.conditions import PROGRAM
from nearwise_lab.experiments import Record


def readable_command(command: str) -> str:
    """Write a recorded command (`command_line`) as it may be typed.

    "nearwise" replaces a leading ``__main__.py``, whatever folder it is in: for
    `python -m` a command begins with the file of the module.
    """
    program, space, rest = command.partition(" ")
    name = program.strip("'\"").replace("\\", "/").rsplit("/", 1)[-1]
    return f"{PROGRAM}{space}{rest}" if name == "__main__.py" else command


def record_facts(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Hardware, versions and commands, each variant once."""

    def distinct(values: Sequence[dict[str, Any]]) -> str:
        texts = [", ".join(f"{k} {v}" for k, v in value.items()) for value in values if value]
        return "; or ".join(dict.fromkeys(texts))

    commands = dict.fromkeys(readable_command(r.command) for r in records if r.command)
    return [
        ("Hardware", distinct([r.hardware for r in records])),
        ("Versions", distinct([r.versions for r in records])),
        ("Commands", "; ".join(commands)),
        ("Finished", f"{min(r.time for r in records)} to {max(r.time for r in records)}"),
    ]
