"""The page of ``nearwise evaluate --report`` about numbers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nearwise.cli.answer_columns import trust_in_words
from nearwise.cli.rows.rows import take_rows
from nearwise.cli.rows.scored_rows import ScoredRows
from nearwise.cli.scores import METRICS
from nearwise.cli.tables import shown_cell
from nearwise_lab.report.charts import Bars, Line, Lines, Span, chart
from nearwise_lab.report.document import Block, Document, Section
from nearwise_lab.report.drawing import ACCENT, FAINT, SOFT, Picture, picture
from nearwise_lab.results.measures import Cell, Table

if TYPE_CHECKING:
    import pandas as pd

    from nearwise.estimators import AttnKNNRegressor

_MOST_POINTS, _WORST, _NEIGHBORS = 1000, 10, 5


def numbers_document(
    model: "AttnKNNRegressor",
    name: str,
    features: "pd.DataFrame | np.ndarray",
    scored: ScoredRows,
    numbers: dict[str, Any],
    lead: str,
    facts: Sequence[tuple[str, str]],
) -> Document:
    """Report of a regressor on rows of a table called `name`.

    `numbers` holds what was measured, as in the JSON of the command; `lead` says on which rows.
    """
    results: list[Block] = [_scores(numbers), _by_slice(numbers), *_pictures(scored, numbers)]
    worst = _worst(model, features, scored) if scored.new else None
    return Document(
        f"{model.fitted_.target_name}, predicted on {name}",
        f"{lead} Its base alone is beside it. {trust_in_words(numbers)}",
        [Section("Results", results), Section("The largest errors", [worst])],
        facts,
        numbers=[
            {"method": "model", "measure": n, "mean": v} for n, v in numbers["metrics"].items()
        ],
    )


def _scores(numbers: dict[str, Any]) -> Table:
    ends, base = numbers["intervals"], numbers["base_alone"]
    caption = "All but R2 and coverage in the unit of the target; intervals by resampled rows."
    table = Table("Scores", caption, ["metric", "model", "95 % interval", "base alone", "better"])
    for metric, value in numbers["metrics"].items():
        label, better = METRICS[metric]
        span = " to ".join(map(shown_cell, ends.get(metric, ())))
        texts = [shown_cell(value), span, shown_cell(base.get(metric)), better]
        table.rows.append((label, [Cell(text) for text in texts]))
    return table


def _by_slice(numbers: dict[str, Any]) -> Table:
    metrics = list(numbers["metrics"])
    heads = ["prediction", "rows", *(METRICS[metric][0] for metric in metrics)]
    caption = "Equal parts of the rows, by the size of the prediction."
    table = Table("By the size of the prediction", caption, heads)
    for one in numbers["by_slice"]:
        cells = [Cell(shown_cell(one[column])) for column in ("rows", *metrics)]
        table.rows.append((f"{one['from']:.4g} to {one['to']:.4g}", cells))
    return table


def _pictures(scored: ScoredRows, numbers: dict[str, Any]) -> list[Picture]:
    y, guess = scored.y, scored.parts["prediction"]
    some = np.random.default_rng(0).permutation(len(y))[:_MOST_POINTS]
    ends = [float(min(y.min(), guess.min())), float(max(y.max(), guess.max()))]
    points = np.column_stack([guess, y])[some].tolist()
    against = Lines(
        "",
        {"equal": Line([(end, end) for end in ends], FAINT), "row": Line(points, SOFT, "o", "")},
        x="predicted",
        y="true",
    )
    drawn = [
        picture(chart([against], (5.0, 4.2)), "true", "True against predicted targets.",
                "True against predicted targets, at most 1,000 rows."),
        _bars({f"{i / 10:g}": n for i, n in enumerate(numbers["pit"])}, "pit",
              "Rows by the predicted probability of less than their target (PIT), in ten parts "
              "named by their start; uniform where the predicted distributions are right."),
    ]  # fmt: skip
    if "confidence" in numbers:
        slices = numbers["by_slice"]
        shares = {f"{one['from']:.4g} to {one['to']:.4g}": one["coverage"] for one in slices}
        caption = f"Share of targets in their interval of confidence {numbers['confidence']:g}"
        drawn.append(_bars(shares, "coverage", f"{caption}, by the size of the prediction."))
    return drawn


def _bars(values: dict[str, float], name: str, caption: str) -> Picture:
    spans = {label: Span(value, None, None) for label, value in values.items()}
    bars = Bars("", spans, dict.fromkeys(spans, ACCENT), "{:.3g}")
    return picture(chart([bars], (6.0, 0.5 + 0.24 * len(spans))), name, caption, caption)


def _worst(
    model: "AttnKNNRegressor", features: "pd.DataFrame | np.ndarray", scored: ScoredRows
) -> Table:
    """Rows with the largest errors, and the targets and weights of their neighbors."""
    parts = scored.parts
    at = np.argsort(-np.abs(scored.y - parts["prediction"]), kind="stable")[:_WORST]
    found = [one.neighbors for one in model.explain(take_rows(features, at), _NEIGHBORS)]
    table = Table(
        "The largest errors",
        "Rows are those of the file, from 0. Of each neighbor its target and weight.",
        ["row", "true", "predicted", "base alone", "neighbors"],
        wrap=True,
    )
    for row, neighbors in zip(at.tolist(), found, strict=True):
        values = (scored.y[row], parts["prediction"][row], parts["base"][row])
        shown = ", ".join(f"{shown_cell(one.target)} ({one.weight:.0%})" for one in neighbors)
        cells = [Cell(shown_cell(float(value))) for value in values]
        table.rows.append((str(scored.at[row]), [*cells, Cell(shown)]))
    return table
