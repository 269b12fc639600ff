"""What the benchmarks share: their options, what results were made under, and how they are kept."""

import argparse
import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from nearwise_lab.results.measures import mean_with_interval

from nearwise.conditions import hardware, versions
from nearwise.safe_files import plain, write_aside

HERE = Path(__file__).parent
RESULTS = HERE / "results"


def options_of(doc: str | None, **options: Any) -> argparse.ArgumentParser:
    """Parser with an option for each default: a switch for False, else text, a number or a path."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in options.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
        else:
            kind = str if default is None else type(default)
            parser.add_argument(flag, default=default, type=kind)
    return parser


def listed(text: str, kind: Callable[[str], Any] = str) -> list[Any]:
    """Parts of a text between commas."""
    return [kind(part) for part in text.split(",")]


def conditions(command: str | None = None) -> dict[str, Any]:
    """Command (by default this process', without its machine's paths), hardware and versions."""
    rest = ["PATH" if Path(word).is_absolute() else word for word in sys.argv[1:]]
    words = ["python", f"benchmarks/{Path(sys.argv[0]).name}", *rest]
    return {
        "command": shlex.join(words) if command is None else command,
        "hardware": hardware(),
        "versions": versions(),
    }


def read(path: Path) -> Any:
    """Content of a file of results; an empty dict where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def keep(content: Any, path: Path) -> None:
    """Write a file of results, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(plain(content), indent=1, ensure_ascii=False)
    text = re.sub(r"([\[{])\s+([^][{}]*?)\s+([]}])", _one_line, text)
    write_aside(path, (text + "\n").encode())


def _one_line(found: re.Match[str]) -> str:
    """Write a list or object that holds no other on one line."""
    before, within, after = found.groups()
    return before + re.sub(r"\n\s*", " ", within) + after


def means_by(
    runs: list[dict[str, Any]], groups: dict[str, Iterable[Any]], measures: dict[str, int]
) -> list[dict[str, Any]]:
    """Means over the seeds of the runs with equal values of `groups`, in the order of these.

    `measures` are rounded to their number of digits. Runs with seeds above 100, for choices, stand
    apart from those of the record.
    """
    rows = []
    for of_record, *values in product((True, False), *groups.values()):
        row = dict(zip(groups, values, strict=True))
        mine = [
            run for run in runs
            if (run["seed"] <= 100) == of_record and row.items() <= run.items()
        ]  # fmt: skip
        if mine:
            found = {k: interval([run[k] for run in mine], n) for k, n in measures.items()}
            rows.append(row | {"seeds": [run["seed"] for run in mine]} | found)
    return rows


def keep_runs(
    wanted: Iterable[dict[str, Any]],
    measure: Callable[..., dict[str, Any]],
    summary: Callable[[list[dict[str, Any]]], list[dict[str, Any]]],
    path: Path,
) -> None:
    """Measure what a file of results lacks, and keep each run as it comes.

    `wanted` has the arguments of `measure` for each run, which are kept with what it finds, and
    `summary` makes the results of all runs.
    """
    content = read(path)
    runs, commands = content.get("runs", []), content.get("commands", [])
    for which in wanted:
        if any(which.items() <= run.items() for run in runs):
            continue
        found = measure(**which)
        made = conditions()
        commands = list(dict.fromkeys([*commands, made.pop("command")]))
        runs.append(which | {"commit": made["versions"].get("commit", "unknown")} | found)
        print(*which.values(), flush=True)
        keep({"commands": commands, **made, "results": summary(runs), "runs": runs}, path)


def interval(values: Any, digits: int | None = None) -> dict[str, Any]:
    """Mean over seeds with the ends of its 95 % t-interval, None for one seed."""
    found = mean_with_interval([float(v) for v in values])
    ends = {"mean": found.mean, "low": found.low, "high": found.high}
    if digits is None:
        return ends
    return {name: None if v is None else round(v, digits) for name, v in ends.items()}


def take(X: Any, rows: np.ndarray) -> Any:
    """Give some rows of an array or a table."""
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]


def milliseconds(work: Callable[[], Any]) -> float:
    """Wall time of one call."""
    begin = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - begin)
