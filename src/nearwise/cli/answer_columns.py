"""Explanations, prediction sets and selective prediction, as table columns or JSON."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearwise.cli.console import in_flags
from nearwise.cli.rows.parsing import parse_levels
from nearwise.cli.tables import percent, shown_cell
from nearwise.names import are_positions
from nearwise.safe_files import plain, standard_output, write_aside

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from nearwise import estimators as of
    from nearwise.cli.rows.scored_rows import ScoredRows
    from nearwise.estimators.opening import Estimator


def beside(copied: "pd.DataFrame", answers: "pd.DataFrame") -> "pd.DataFrame":
    """Concatenate copied columns and answers; ValueError if two share a name."""
    import pandas as pd

    twice = [name for name in copied.columns if name in answers.columns]
    if twice:
        raise ValueError(f"--copy {twice[0]!r} is also the name of an output column. Rename it.")
    return pd.concat([copied.reset_index(drop=True), answers], axis=1)


def neighbor_columns(explanations: Sequence[Any]) -> dict[str, list[Any]]:
    """Convert the neighbors to columns, one value per explained row.

    Classes: base_proba and neighbor_proba, the probability of the prediction by the base and by the
    neighbors alone. Numbers: base_prediction. Then null_mass, and neighbor_1_id, _label (or
    _target), _weight, _distance. A table adds neighbor_1_differs, the columns that differ most;
    images from files add neighbor_1_file, other rows with something to show neighbor_1_show. The
    next neighbors follow, up to the largest number of them; None for rows with fewer.
    """
    from nearwise.html.card import make_card, pixels_of

    one = next((n for e in explanations for n in e.neighbors), None)
    of_numbers = hasattr(one, "target")
    columns: dict[str, list[Any]] = {}
    if of_numbers:
        columns["base_prediction"] = [e.base_prediction for e in explanations]
    else:
        for name in ("base_proba", "neighbor_proba"):
            columns[name] = [float(getattr(e, name)[e.proba.argmax()]) for e in explanations]
    columns["null_mass"] = [e.null_mass for e in explanations]
    names = ["id", "target" if of_numbers else "label", "weight", "distance"]
    held = [[{name: getattr(n, name) for name in names} for n in e.neighbors] for e in explanations]
    are_images = one is not None and pixels_of(one.row) is not None
    if are_images and any("file" in n.row for e in explanations for n in e.neighbors):
        names.append("file")
        for cells, e in zip(held, explanations, strict=True):
            for cell, neighbor in zip(cells, e.neighbors, strict=True):
                cell["file"] = neighbor.row.get("file")
    elif one is not None and not are_images and not are_positions(list(one.row)):
        names.append("differs")
        for cells, e in zip(held, explanations, strict=True):
            for cell, shown in zip(cells, make_card(e).neighbors, strict=True):
                cell["differs"] = shown.difference
    if "file" not in names and any(n.show for e in explanations for n in e.neighbors):
        names.append("show")
        for cells, e in zip(held, explanations, strict=True):
            for cell, neighbor in zip(cells, e.neighbors, strict=True):
                cell["show"] = neighbor.show
    for i in range(max(map(len, held), default=0)):
        for name in names:
            values = [cells[i][name] if i < len(cells) else None for cells in held]
            columns[f"neighbor_{i + 1}_{name}"] = values
    return columns


def write_json_lines(records: Sequence[Mapping[Any, Any]], out: str) -> None:
    """Write one JSON object per line, atomically."""
    text = "".join(json.dumps(plain(record), ensure_ascii=False) + "\n" for record in records)
    if out == "-":
        with standard_output() as stream:
            stream.write(text)
    else:
        write_aside(Path(out), text.encode("utf-8"))


SET_CONFIDENCE, BOUND_CONFIDENCE = 0.9, 0.95
_ONLY_LEARNED = (
    "Abstention, sets and intervals are calibrated on the training data, so they cannot be "
    "measured on it. Give rows that are not in the training data."
)


@dataclass(frozen=True)
class TrustOptions:
    """Options for selective prediction, prediction sets, p-values and confidence."""

    coverage: float | None = None
    max_risk: float | None = None
    sets: bool = False
    novelty: bool = False
    confidence: float | None = None

    def check(self) -> None:
        """Raise ValueError for contradicting options, before a model is read."""
        if self.coverage is not None and self.max_risk is not None:
            raise ValueError("--coverage and --max-risk both limit the answers. Give one of them.")

    def check_confidence(self) -> None:
        """Raise ValueError for a classifier's confidence without an option that uses it."""
        if self.confidence is not None and not (self.selective or self.sets):
            raise ValueError(
                "--confidence is that of --sets, --coverage or --max-risk. Give one of them too."
            )

    def check_ranges(self) -> None:
        """Raise ValueError for a coverage or a confidence out of range."""
        from nearwise.estimators.uncertainty.conformal import check_confidence
        from nearwise.estimators.uncertainty.selective import check_request

        check_confidence(self.set_confidence)
        check_request(self.coverage, self.max_risk, self.bound_confidence)

    @property
    def bound_confidence(self) -> float:
        """Confidence of the upper bound on the error rate."""
        return BOUND_CONFIDENCE if self.confidence is None else self.confidence

    @property
    def set_confidence(self) -> float:
        """Confidence of the prediction sets."""
        return SET_CONFIDENCE if self.confidence is None else self.confidence

    @property
    def selective(self) -> bool:
        """Whether to select rows to answer."""
        return self.coverage is not None or self.max_risk is not None

    def select(self, query: Any) -> Any:
        """Select the rows to answer, or return None without such an option."""
        if not self.selective:
            return None
        if hasattr(query, "interval"):
            return query.selection(self.coverage, confidence=self.set_confidence)
        return query.selection(
            coverage=self.coverage, max_risk=self.max_risk, confidence=self.bound_confidence
        )


def trust_columns(
    query: Any, options: TrustOptions, chosen: Any, *, as_text: bool
) -> dict[str, list[Any]]:
    """Return the columns of the given trust options: accepted, set, novelty_p.

    A set is a list, or with `as_text` its classes joined by "|", with "|" and backslash escaped by
    a backslash.
    """
    columns: dict[str, list[Any]] = {}
    if chosen is not None:
        columns["accepted"] = chosen.accepted.tolist()
    if options.sets:
        classes = query.model.classes
        named = [classes[row].tolist() for row in query.sets(options.set_confidence)]
        columns["set"] = list(map(joined_labels, named)) if as_text else named
    if options.novelty:
        columns["novelty_p"] = query.novelty_p_value().tolist()
    return columns


def number_columns(
    query: "of.NumberQuery", options: TrustOptions, output: Any, quantiles: str | None
) -> dict[str, Any]:
    """Return the columns of a regression: prediction, low and high, quantile_LEVEL."""
    columns: dict[str, Any] = {"prediction": query.predict(output or "mean")}
    if options.confidence is not None:
        columns["low"], columns["high"] = query.interval(options.confidence).T
    if quantiles is not None:
        levels = parse_levels("--quantiles", quantiles)
        found = zip(levels, query.quantiles(levels).T, strict=True)
        columns |= {f"quantile_{level:g}": values for level, values in found}
    return columns


def joined_labels(labels: list[Any]) -> str:
    """Join labels by |, which is escaped within them."""
    return "|".join(re.sub(r"([\\|])", r"\\\1", str(label)) for label in labels)


def spoken(chosen: Any) -> str:
    """Describe the accepted rows and their expected error."""
    said = f"Accepted {int(chosen.accepted.sum())} of {len(chosen.accepted)} rows "
    if hasattr(chosen, "expected_error"):
        known = chosen.threshold, chosen.expected_error, chosen.error_of_all
        width, error, of_all = map(shown_cell, known)
        return (
            f"{said}(interval at most {width} wide). On such training rows, predicted out of "
            f"sample, the mean absolute error was {error}; on all {of_all}."
        )
    return (
        f"{said}(largest probability at least {chosen.threshold:.4g}). Of {chosen.n_accepted} such "
        f"training rows, predicted out of sample, {percent(chosen.expected_risk, 2)} were wrong; "
        f"at most {percent(chosen.risk_bound, 2)} in the long run, with confidence "
        f"{chosen.confidence:g}."
    )


def measure_trust(
    model: Any, features: "pd.DataFrame | np.ndarray", scored: "ScoredRows", options: TrustOptions
) -> "tuple[dict[str, Any], dict[str, np.ndarray]]":
    """Measure abstention, and sets or intervals, on scored rows; return "interval" (n, 2) too.

    "selective": coverage_asked, coverage, threshold; for classes risk (None if no row was
    answered), expected_risk, risk_bound, bound_confidence; for numbers mae (None as well) and
    expected_mae. "sets" for classes: confidence and the metrics of
    `nearwise.metrics.evaluate_sets`; "confidence" for numbers. Only "not_measured", the reason, if
    the rows are not new or the model has too few calibration rows.
    """
    from nearwise.metrics import evaluate_sets

    if not scored.new:
        return {"not_measured": _ONLY_LEARNED}, {}
    try:
        query, confidence = model.query(features), options.set_confidence
        chosen: Any = options.select(query)
        sets = query.sets(confidence) if hasattr(query, "sets") else None
    except ValueError as error:
        return {"not_measured": in_flags(str(error))}, {}
    answered = chosen.accepted
    selective = {"coverage_asked": options.coverage, "coverage": float(answered.mean())}
    if sets is None:
        away = abs(chosen.predictions - scored.y)[answered]
        selective |= {
            "mae": float(away.mean()) if len(away) else None,
            "expected_mae": chosen.expected_error,
            "threshold": chosen.threshold,
        }
        found = {"confidence": chosen.confidence, "selective": selective}
        return found, {"interval": chosen.interval}
    wrong = (chosen.labels != model.classes_[scored.y])[answered]
    selective |= {
        "risk": float(wrong.mean()) if len(wrong) else None,
        "expected_risk": chosen.expected_risk,
        "risk_bound": chosen.risk_bound,
        "bound_confidence": chosen.confidence,
        "threshold": chosen.threshold,
    }
    measured = {"confidence": confidence} | evaluate_sets(scored.y, sets, confidence)
    return {"selective": selective, "sets": measured}, {}


def trust_in_words(numbers: dict[str, Any]) -> str:
    """Describe the result of `measure_trust` in two sentences."""
    if "not_measured" in numbers:
        what = "sets" if "by_class" in numbers else "intervals"
        return f"Abstention and {what} were not measured. {numbers['not_measured']}"
    chosen = numbers["selective"]
    answers = f"Selective prediction at coverage {percent(chosen['coverage_asked'], 0)}: "
    answers += f"{percent(chosen['coverage'], 0)} of these rows accepted, "
    if "sets" not in numbers:
        mae, expected = shown_cell(chosen["mae"]) or "none", shown_cell(chosen["expected_mae"])
        ends = f"Intervals have confidence {percent(numbers['confidence'], 0)}."
        return f"{answers}mean absolute error {mae} (expected {expected}). {ends}"
    sets = numbers["sets"]
    risk = "none" if chosen["risk"] is None else percent(chosen["risk"], 2)
    return (
        f"{answers}error rate {risk} (expected {percent(chosen['expected_risk'], 2)}, at most "
        f"{percent(chosen['risk_bound'], 2)} with confidence {chosen['bound_confidence']:g}). Sets "
        f"of confidence {percent(sets['confidence'], 0)} contain the true class of "
        f"{percent(sets['coverage'])} of rows (mean size {sets['mean_size']:.2f} classes; mean "
        f"deviation of a class's coverage from the confidence {percent(sets['class_gap'])})."
    )


def wrong_labels_line(model: "Estimator") -> str:
    """Describe the estimated noise rate of a model with `label_noise`, and the decision."""
    note = model.report_.choice["label_noise"]
    low, high = note["interval"]
    rate = "not known" if note.get("taken") == 0 else percent(note["rate"])
    found = f" (95 % interval {percent(low)} to {percent(high)})" if low < high else ""
    if note.get("taken", 1) < 1:
        found = f" (between {percent(low)} and {percent(high)})"
    decided = f"; {note['decision']}" if "decision" in note else ""
    answered = f". Predictions are the {note['answers']}" if "answers" in note else ""
    what = "labels" if hasattr(model, "classes_") else "targets"
    return f"Wrong {what}: {rate}{found}{decided}{answered}."
