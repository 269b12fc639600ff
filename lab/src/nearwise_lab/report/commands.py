"""Commands, as they were recorded and as they may be run again."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nearwise.conditions import PROGRAM
from nearwise_lab.experiments import Record
from nearwise_lab.experiments.records import SETTINGS_FILE

# What decides the rows, so that a folder takes them beside those that it holds.
_KEPT = ("--dataset", "--seeds", "--config", "--set", "--data-root")
_SHORT = {"-d": "--dataset"}


def readable_command(command: str) -> str:
    """Write a recorded command (`command_line`) as it may be typed.

    "nearwise" replaces a leading ``__main__.py``, whatever folder it is in: for
    `python -m` a command begins with the file of the module.
    """
    program, space, rest = command.partition(" ")
    name = program.strip("'\"").replace("\\", "/").rsplit("/", 1)[-1]
    return f"{PROGRAM}{space}{rest}" if name == "__main__.py" else command


def experiment_command(
    name: str, dataset: str, preset: str, records: Sequence[Record], folder: Path | None
) -> str:
    """Write the command that adds an experiment to a folder.

    Parameters
    ----------
    name, dataset, preset : str
        What to run. Data set and settings are taken as an earlier command for the same data set
        and preset gave them, where there is one.
    records : sequence of Record
        All of the folder.
    folder : Path, optional
        Its settings.json shows whether it is small.

    Returns
    -------
    command : str
        With "DIR" for the folder.
    """
    mine = [r for r in records if (r.dataset, r.preset) == (dataset, preset)]
    options, small = _options_of([r.command for r in mine])
    if not any(option == "--dataset" for option, _ in options):
        options = [("--dataset", dataset), *options]
    words = [PROGRAM, "experiment", name]
    for option, value in [*options, ("--preset", preset)]:
        words += [option, value]
    if small or _is_small(folder, f"{preset} on {dataset}"):
        words.append("--small")
    return shlex.join([*words, "--out", "DIR"])


def efficiency_command(folder: Path | None) -> str:
    """Write the command that adds the efficiency of search, which needs no data set."""
    small = " --small" if _is_small(folder) else ""
    return f"{PROGRAM} experiment efficiency{small} --out DIR"


def _options_of(commands: Sequence[str]) -> tuple[list[tuple[str, str]], bool]:
    """Options of the last `nearwise experiment` that name what decides the rows."""
    for command in reversed(list(dict.fromkeys(commands))):
        try:
            words = shlex.split(readable_command(command))
        except ValueError:  # not a command line
            continue
        if words[:1] != [PROGRAM] or "experiment" not in words:
            continue
        found = []
        rest = iter(words[words.index("experiment") + 1 :])
        for word in rest:
            option, equals, value = word.partition("=")
            option = _SHORT.get(option, option)
            if option in _KEPT:
                found.append((option, value if equals else next(rest, "")))
        return found, "--small" in words
    return [], False


def _is_small(folder: Path | None, preset: str | None = None) -> bool:
    """Whether a preset of the folder, or any, has the limits of the small size."""
    path = None if folder is None else folder / SETTINGS_FILE
    if path is None or not path.exists():
        return False
    try:
        presets: dict[str, dict[str, Any]] = json.loads(path.read_text()).get("presets", {})
        asked = presets.values() if preset is None else [presets.get(preset, {})]
        # the small size alone limits both the rows and the parts that are taken off
        return any(s.get("max_rows") and s.get("ablations") for s in asked)
    except (ValueError, AttributeError):  # damaged: the records are enough for a report
        return False
