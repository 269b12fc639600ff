"""A whole bench: times and memory at several lengths, every result kept as it is measured."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from nearwise.conditions import command_line, hardware, versions
from nearwise_lab.experiments.token_layers.choices import (
    BASELINE,
    LayerChoice,
    LayerShape,
    layer_choices,
    pick_layers,
)
from nearwise_lab.experiments.token_layers.memory import memory_curve, peak_memory
from nearwise_lab.experiments.token_layers.timing import time_layers

Row = dict[str, Any]
Watch = Callable[[Sequence[Any], str], Iterable[Any]]
RESULTS_FILE, CONDITIONS_FILE = "bench.jsonl", "bench.json"
TOKENS_AT_ONCE = 2048  # of all sequences of a batch, where no batch size is given


@dataclass(frozen=True)
class BenchPlan:
    """What is measured.

    Attributes
    ----------
    tokens : tuple of int
        Lengths N of a sequence.
    neighbors : int
    dim, heads : int
    batch : int, optional
        Sequences; default 8, less for long ones: at most 2,048 tokens in all, one sequence at
        least.
    layers : tuple of str
        Names, default all.
    dtype, device : str
    threads : int
        Of torch, on a CPU.
    repeats : int
    memory : bool
        Whether peak memory is measured, too.
    curve : tuple of int
        Lengths of the curve of memory; none by default.
    """

    tokens: tuple[int, ...] = (197, 1024)
    neighbors: int = 9
    dim: int = 192
    heads: int = 3
    batch: int | None = None
    layers: tuple[str, ...] = ()
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 1
    repeats: int = 15
    memory: bool = True
    curve: tuple[int, ...] = ()

    def shape(self, n_tokens: int) -> LayerShape:
        """Shape of an input of some length."""
        batch = self.batch or min(8, max(1, TOKENS_AT_ONCE // n_tokens))
        return LayerShape(batch, n_tokens, self.dim, self.heads, self.dtype)

    def choices(self, n_tokens: int) -> list[LayerChoice]:
        """Layers that are measured at some length."""
        return pick_layers(layer_choices(n_tokens, self.neighbors), self.layers)

    def curve_choices(self) -> list[LayerChoice]:
        """Layers of the curve: dense attention and the nearest, compiled and plain."""
        known = layer_choices(min(self.curve), self.neighbors)
        return pick_layers(known, self.layers or ("KNNAttention", "KNNAttention plain"))


class BenchRows:
    """Results by what was measured, in a file where one is given: what is there is not run again.

    Parameters
    ----------
    folder : Path, optional
        Holds one line per result and the conditions; made if absent.

    Raises
    ------
    ValueError
        If the file cannot be read.
    """

    def __init__(self, folder: Path | None) -> None:
        self.path = None if folder is None else folder / RESULTS_FILE
        self.rows: list[Row] = []
        if self.path is None or folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self.rows = [_read(line, self.path) for line in self._lines()]
        conditions = {"command": command_line(), "versions": versions(), "hardware": hardware()}
        (folder / CONDITIONS_FILE).write_text(json.dumps(conditions, indent=1) + "\n")

    def _lines(self) -> list[str]:
        assert self.path is not None
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # a line that was cut off while it was written
            self.path.write_text(whole, encoding="utf-8")
        return [line for line in whole.splitlines() if line]

    def find(self, key: Row) -> list[Row]:
        """Results measured with exactly these settings."""
        return [row for row in self.rows if row["key"] == key]

    def add(self, key: Row, results: Sequence[Row]) -> list[Row]:
        """Keep results."""
        new = [{"key": key, **result} for result in results]
        self.rows += new
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in new)
        return new


def run_bench(plan: BenchPlan, folder: Path | None = None, *, watch: Watch) -> list[Row]:
    """Measure everything of a plan.

    Parameters
    ----------
    plan : BenchPlan
    folder : Path, optional
        Keeps results; a run that was stopped goes on there.
    watch : callable
        Goes through the steps of a part and its title, for a progress bar.

    Returns
    -------
    rows : list of dict
        ``kind`` "time" (``layer``, ``forward`` and ``forward_backward`` with ``median_ms``,
        ``low_ms``, ``high_ms`` and ``ratio`` to the baseline), "memory" (``layer``, ``forward``,
        ``forward_backward`` in MiB) or "curve" (``layer``, ``tokens``, ``mib``, ``note``).
    """
    if plan.device == "cpu":
        torch.set_num_threads(plan.threads)
    store, rows = BenchRows(folder), []
    for n in plan.tokens:
        rows += _timed(plan, store, plan.choices(n), plan.shape(n), watch)
    return rows + run_memory(plan, store, watch=watch)


def run_memory(plan: BenchPlan, store: BenchRows, *, watch: Watch) -> list[Row]:
    """Measure the memory of a plan and its curve; arguments and rows as of `run_bench`."""
    rows: list[Row] = []
    for n in plan.tokens if plan.memory else ():
        for choice in watch(plan.choices(n), f"Memory at N={n}"):
            rows += _memory(plan, store, choice, plan.shape(n))
    if plan.curve:
        wanted = [(n, choice) for n in sorted(plan.curve) for choice in plan.curve_choices()]
        for n, choice in watch(wanted, "Curve of memory"):
            rows += _point(plan, store, choice, n)
    return rows


def _key(plan: BenchPlan, kind: str, shape: LayerShape, choices: Sequence[LayerChoice]) -> Row:
    own: Row = {"kind": kind, "shape": asdict(shape), "neighbors": plan.neighbors}
    own |= {"device": plan.device, "threads": plan.threads}
    own["layers"] = [choice.name for choice in choices]
    return own | ({"repeats": plan.repeats} if kind == "time" else {})


def _timed(
    plan: BenchPlan,
    store: BenchRows,
    choices: Sequence[LayerChoice],
    shape: LayerShape,
    watch: Watch,
) -> list[Row]:
    key = _key(plan, "time", shape, choices)
    if found := store.find(key):
        return found
    times = time_layers(
        choices,
        shape,
        repeats=plan.repeats,
        device=plan.device,
        rounds=lambda turns: watch(turns, f"Time at N={shape.tokens}"),
    )
    results = []
    for name, own in times.items():
        row: Row = {"kind": "time", "layer": name, "tokens": shape.tokens}
        for what, spread in own.items():
            ratio = spread.median_ms / times[BASELINE][what].median_ms
            row[what] = {**asdict(spread), "ratio": ratio}
        results.append(row)
    return store.add(key, results)


def _memory(plan: BenchPlan, store: BenchRows, choice: LayerChoice, shape: LayerShape) -> list[Row]:
    key = _key(plan, "memory", shape, [choice])
    if found := store.find(key):
        return found
    row: Row = {"kind": "memory", "layer": choice.name, "tokens": shape.tokens}
    peaks = peak_memory(choice, shape, device=plan.device, threads=plan.threads)
    row.update({str(what): mib for what, mib in peaks.items()})
    return store.add(key, [row])


def _point(plan: BenchPlan, store: BenchRows, choice: LayerChoice, n: int) -> list[Row]:
    shape = LayerShape(plan.batch or 1, n, plan.dim, plan.heads, plan.dtype)
    key = _key(plan, "curve", shape, [choice])
    if found := store.find(key):
        return found
    (point,) = memory_curve([choice], [n], shape=shape, device=plan.device)
    row: Row = {"kind": "curve", "layer": point.name, "tokens": n}
    return store.add(key, [row | {"mib": point.mib, "note": point.note}])


def _read(line: str, path: Path) -> Row:
    try:
        row: Row = json.loads(line)
        row["key"]["kind"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a file of results: {line[:60]!r}. Give another folder."
        ) from error
    return row
