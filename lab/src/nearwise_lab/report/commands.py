"""Commands and conditions, as they were recorded and as they may be run again."""

import shlex
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


def experiment_command(name: str, dataset: str, preset: str, records: Sequence[Record]) -> str:
    """Write the command that adds an experiment to a folder, "DIR".

    It is the last recorded one for the same data set and preset with another name, so that
    seeds, settings and sizes stay; without one, the shortest.
    """
    mine = [r.command for r in records if (r.dataset, r.preset) == (dataset, preset)]
    for command in reversed(list(dict.fromkeys(mine))):
        try:
            words = shlex.split(readable_command(command))
        except ValueError:  # not a command line
            continue
        if words[:1] == [PROGRAM] and "experiment" in words[:-1]:
            words = words[words.index("experiment") :]
            return shlex.join([PROGRAM, words[0], name, *_without_folder(words[2:])]) + " --out DIR"
    given = [PROGRAM, "experiment", name, "--dataset", dataset, "--preset", preset]
    return f"{shlex.join(given)} --out DIR"


def _without_folder(words: Sequence[str]) -> list[str]:
    kept, rest = [], iter(words)
    for word in rest:
        if word in ("-o", "--out", "--only"):
            next(rest, None)
        elif not word.startswith(("--out=", "--only=", "--quiet", "-q")):
            kept.append(word)
    return kept


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
