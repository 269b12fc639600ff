"""Tables of the comparison of representations."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nearwise.data import Context
from nearwise_lab.experiments.representations import Cell as Place
from nearwise_lab.experiments.representations import Comparison, arm_of
from nearwise_lab.experiments.representations.records import MAIN, POOLING, PROTOCOL
from nearwise_lab.report.representations.findings import Hypothesis
from nearwise_lab.report.study.parts import seed_words
from nearwise_lab.results.measures import (
    EMPTY,
    Cell,
    Mean,
    Measure,
    Table,
    difference_cell,
    is_best,
    mean_with_interval,
    show_mean,
)

ACCURACY = Measure("accuracy", "accuracy", 3, True)
CALIBRATION = (
    Measure("top5", "top-5", 3, True),
    Measure("nll", "NLL", 3),
    Measure("brier", "Brier", 3),
    Measure("ece", "ECE", 3),
    Measure("aurc", "AURC x1000", 1, False, 1000.0),
)
COSTS = (
    Measure("tokens", "tokens", 0, None, interval=False),
    Measure("dims", "dims", 0, None, interval=False),
    Measure("parameters", "probe parameters", 0, None, interval=False),
    Measure("flops", "probe MFLOP/row", 3, None, 1e-6, False),
    Measure("encoder_parameters", "encoder parameters", 0, None, interval=False),
    Measure("fit_seconds", "fit s", 2, None, interval=False),
    Measure("query_us", "query µs/row", 0, None, interval=False),
)
GEOMETRY = (
    Measure("purity", "purity@20", 3, True),
    Measure("silhouette", "silhouette", 3, True),
    Measure("hub_skewness", "hub skewness", 2, None),
    Measure("antihubs", "antihubs", 3, None),
    Measure("intrinsic_dimension", "intrinsic dim.", 1, None),
    Measure("effective_rank", "effective rank", 1, None),
    Measure("class_alignment", "class alignment", 3, None),
    Measure("view_alignment", "view alignment", 3, None),
    Measure("uniformity", "uniformity", 2, None),
    Measure("anisotropy", "anisotropy", 3, None),
)
ERRORS = (
    Measure("psnr", "PSNR, dB", 2, True),
    Measure("psnr_hidden", "PSNR of hidden pixels, dB", 2, True),
)
Lookup = Callable[[str, Measure], Mean | None]


def mean_of(values: Mapping[int, float]) -> Mean | None:
    """Mean over seeds with Student's interval; None where there is nothing."""
    return mean_with_interval(list(values.values())) if values else None


def accuracy_table(comparison: Comparison, context: str) -> Table:
    """Accuracy of every encoder under every probe."""
    probes = comparison.probes
    columns = [Measure(p, p, 3, True) for p in probes]

    def find(encoder: str, column: Measure) -> Mean | None:
        return mean_of(comparison.values(Place(encoder, column.key, context)))

    shown = _over(comparison, context, comparison.part(MAIN))
    caption = (
        f"Test accuracy. {shown}. The best of a column is bold, whether or not the difference is "
        "more than chance."
    )
    return _grid(f"Encoder x probe, context {context}", caption, comparison.encoders, columns, find)


def difference_table(comparison: Comparison, context: str) -> Table:
    """Show how far every encoder differs from the full baseline, in points."""
    in_points = Measure("accuracy", "accuracy", 1, True, 100.0)
    table = Table(
        f"Points over the full baseline, context {context}",
        "Paired over test rows and seeds, with the 95 % interval of both. "
        '"None": the interval holds 0.',
        ["encoder", *comparison.probes],
    )
    for encoder in comparison.encoders:
        if encoder != "full":
            found = [
                comparison.difference(Place(encoder, p, context), Place("full", p, context))
                for p in comparison.probes
            ]
            cells = [Cell(EMPTY) if d is None else _point_cell(d, in_points) for d in found]
            table.rows.append((arm_of(encoder).title, cells))
    return table


def _point_cell(difference: Any, measure: Measure) -> Cell:
    cell = difference_cell(difference, measure)
    if cell.detail:
        return cell
    low, high = 100 * difference.low, 100 * difference.high  # one seed: the interval is over rows
    return Cell(cell.text, cell.mark, f"[{low:+.1f}, {high:+.1f}]")


def calibration_table(comparison: Comparison, context: str, probe: str) -> Table:
    """Every other measure of a probe's predictions."""

    def find(encoder: str, column: Measure) -> Mean | None:
        return mean_of(comparison.values(Place(encoder, probe, context), column.key))

    shown = [r for r in comparison.part(MAIN) if r["probe"] == probe]
    caption = f"{_over(comparison, context, shown)}."
    title = f"{probe}, context {context}"
    return _grid(title, caption, comparison.encoders, CALIBRATION, find)


def cost_table(comparison: Comparison, context: str, probe: str) -> Table:
    """Show what a probe reads and what it costs."""

    def find(encoder: str, column: Measure) -> Mean | None:
        return mean_of(comparison.values(Place(encoder, probe, context), column.key))

    caption = (
        "Numbers that a probe reads of an image, what it learned, the FLOPs of a query, and "
        "its wall times on the machine below."
    )
    return _grid(f"Cost: {probe}, context {context}", caption, comparison.encoders, COSTS, find)


def geometry_table(comparison: Comparison, context: str) -> Table | None:
    """Every geometric measure of the test features."""
    rows = [g for g in comparison.geometry if g["context"] == context]
    if not rows:
        return None

    def find(encoder: str, column: Measure) -> Mean | None:
        return mean_of(by_seed(rows, column.key, encoder=encoder))

    n = max(int(r["n"]) for r in rows)
    caption = (
        f"Of pooled features of {n:,} test rows, cosine neighbors. "
        f"{_over(comparison, context, rows)}. View alignment: mean squared distance between the "
        "directions of one image from two draws of the context."
    )
    return _grid(f"Geometry, context {context}", caption, comparison.encoders, GEOMETRY, find)


def by_seed(rows: Sequence[Mapping[str, Any]], key: str, **where: Any) -> dict[int, float]:
    """Mean of a number by seed, over the rows that match."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if all(row.get(k) == v for k, v in where.items()) and row.get(key) is not None:
            found.setdefault(int(row["seed"]), []).append(float(row[key]))
    return {seed: float(np.mean(v)) for seed, v in sorted(found.items())}


def likeness_table(comparison: Comparison, context: str, key: str) -> Table | None:
    """CKA or neighbor overlap between encoders."""
    names = comparison.encoders
    rows = [g for g in comparison.geometry if g["context"] == context and key in g]
    if not rows:
        return None
    titles = {"cka": "Likeness (debiased linear CKA)", "overlap": "Shared neighbors of 20"}
    table = Table(
        f"{titles[key]}, context {context}",
        f"Between encoders, on the same test rows. {_over(comparison, context, rows)}.",
        ["encoder", *(arm_of(n).title for n in names)],
    )
    for first in names:
        cells = []
        for second in names:
            found = {
                int(g["seed"]): float(g[key][second])
                for g in rows
                if g["encoder"] == first and second in g[key]
            }
            cells.append(Cell(show_mean(mean_of(found), Measure(key, key, 2, interval=False))))
        table.rows.append((arm_of(first).title, cells))
    return table


def protocol_table(comparison: Comparison, probe: str) -> Table | None:
    """Show what the way of hiding pixels does to a probe."""
    records = [r for r in comparison.part(PROTOCOL) if r["probe"] == probe]
    shown = list(dict.fromkeys(r["context"] for r in records))
    if not shown:
        return None
    columns = [Measure(c, context_words(c), 3, True) for c in shown]
    names = [n for n in comparison.encoders if any(r["encoder"] == n for r in records)]

    def find(encoder: str, column: Measure) -> Mean | None:
        return mean_of(comparison.values(Place(encoder, probe, column.key), part=PROTOCOL))

    caption = (
        "The same encoders and the same share of pixels: one layout for all images, a layout of "
        "its own for each image, and one layout a batch as in the original study, where features "
        f"carry the batch. {_over(comparison, shown[0], records)}. Bold is the best of a column."
    )
    return _grid(f"Effect of the protocol on {probe}", caption, names, columns, find)


def pooling_table(comparison: Comparison, context: str) -> Table | None:
    """Mean-pooled against flattened tokens."""
    records = [r for r in comparison.part(POOLING) if r["context"] == context]
    if not records:
        return None
    seen = list(dict.fromkeys((r["probe"], r["pool"]) for r in records))
    columns = [Measure(f"{p}|{pool}", f"{p}, {pool}", 3, True) for p, pool in seen]
    names = [n for n in comparison.encoders if any(r["encoder"] == n for r in records)]

    def find(encoder: str, column: Measure) -> Mean | None:
        probe, pool = column.key.split("|")
        place = Place(encoder, probe, context)
        found = comparison.values(place, part=POOLING, pool=pool)
        return mean_of(found or comparison.values(place, part=MAIN, pool=pool))

    caption = f"What averaging the tokens of an image costs. {_over(comparison, context, records)}."
    return _grid(f"Pooling, context {context}", caption, names, columns, find)


def reconstruction_table(comparison: Comparison) -> Table | None:
    """How well each field gives back the test images."""
    if not comparison.fields:
        return None
    contexts = list(dict.fromkeys(c for f in comparison.fields for c in f["errors"]))
    table = Table(
        "Reconstruction of test images",
        "PSNR of mean squared errors over all pixels and channels, data range 1; hidden pixels are "
        f"those outside the context. {_seeds(comparison)}.",
        ["field", *(f"{c}: {m.title}" for c in contexts for m in ERRORS if _told(c, m))],
    )
    for name in dict.fromkeys(f["encoder"] for f in comparison.fields):
        cells = []
        for context in contexts:
            for measure in (m for m in ERRORS if _told(context, m)):
                found = {
                    int(f["seed"]): f["errors"][context][measure.key]
                    for f in comparison.fields
                    if f["encoder"] == name and context in f["errors"]
                }
                cells.append(Cell(show_mean(mean_of(found), measure)))
        table.rows.append((arm_of(name).title, cells))
    return table


def _told(context: str, measure: Measure) -> bool:
    return context != "full" or measure.key == "psnr"


def verdict_table(hypotheses: Sequence[Hypothesis]) -> Table:
    """List the question and the hypotheses with their verdicts."""
    table = Table(
        "Verdicts",
        "Computed from the records; differences in accuracy points with 95 % intervals over test "
        "rows and seeds. Not shown: the interval holds 0.",
        ["claim", "verdict", "what decided"],
        wrap=True,
    )
    marks = {"supported": "better", "supported in part": "better", "contradicted": "worse"}
    for h in hypotheses:
        cells = [Cell(h.verdict, marks.get(h.verdict, "none")), Cell(h.words)]
        table.rows.append((h.claim, cells))
    return table


def context_words(context: str) -> str:
    """Write a context as a heading, such as "20 %, one layout"."""
    seen = Context.parse(context)
    if seen.kind == "full":
        return "full"
    kinds = {"per-image": "per image", "fixed": "one layout", "per-batch": "per batch"}
    seed = f", seed {seen.seed}" if seen.seed else ""
    return f"{100 * seen.fraction:g} %, {kinds[seen.kind]}{seed}"


def _grid(
    title: str, caption: str, names: Sequence[str], columns: Sequence[Measure], find: Lookup
) -> Table:
    """Lay encoders out by columns, the best of each column marked."""
    table = Table(title, caption, ["encoder", *(c.title for c in columns)])
    means = {n: [find(n, c) for c in columns] for n in names}
    for name in names:
        cells = [
            Cell(
                show_mean(mean, c), "best" if is_best(mean, [means[o][i] for o in names], c) else ""
            )
            for i, (c, mean) in enumerate(zip(columns, means[name], strict=True))
        ]
        table.rows.append((arm_of(name).title, cells))
    return table


def _seeds(comparison: Comparison) -> str:
    seeds = comparison.seeds
    if len(seeds) == 1:
        return f"One seed ({seeds[0]})"
    return f"Mean ± half the 95 % t-interval over {seed_words(seeds)}"


def _over(comparison: Comparison, context: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Say how many seeds, and draws of the context, the rows shown are of; by probe if need be."""
    if context == "full":
        return _seeds(comparison)
    draws: dict[Any, set[int]] = {}
    for row in rows:
        if row["context"] == context:
            draws.setdefault(row.get("probe"), set()).add(int(row["draw"]))
    named: dict[int, list[str]] = {}
    for name, drawn in draws.items():
        named.setdefault(len(drawn), []).append(str(name))
    parts = []
    for n, names in named.items():
        of = f" ({', '.join(names)})" if len(named) > 1 else ""
        parts.append(f"{n} draw{'s' * (n > 1)}{of}")
    return f"{_seeds(comparison)}, {', '.join(parts)} of the context each"
