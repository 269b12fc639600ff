"""Verdict of ``nearwise evaluate`` in two lines: how good a model is, and what to do next.

Each word rests on a number and its interval; `facts` holds them.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from nearwise.cli.chance import (
    Estimate,
    area_under_curve,
    calibration_by_chance,
    mean_difference,
    more_than_expected,
    share_difference,
    share_of,
)
from nearwise.cli.console import typed
from nearwise.cli.tables import percent
from nearwise.names import listed

if TYPE_CHECKING:
    import numpy as np

    from nearwise.cli.rows.scored_rows import ScoredRows

FEWEST = 10  # least rows for an interval, and for a claim
_SHARES = (0.9, 0.8, 0.7, 0.6, 0.5)  # of rows to accept
_VERY_SURE = 0.95
_WORTH = 0.9  # largest MAE of selected rows, as a share of that of all, to suggest a selection
_RELATION = {1: "better than", 0: "within chance of", -1: "worse than"}


class Verdict(NamedTuple):
    """Two lines, and the numbers behind them."""

    quality: str
    advice: str
    facts: dict[str, Any]

    @property
    def lines(self) -> list[str]:
        """The lines of text."""
        return [self.quality, self.advice]

    def to_json(self) -> dict[str, Any]:
        """Return lines and facts for JSON; an estimate is [value, low, high]."""
        return {"lines": self.lines} | self.facts


@dataclass(frozen=True)
class Inputs:
    """Model and data of a verdict, for the commands that it suggests.

    `options` are those by which both are read (--store, --no-header, --sheet).
    """

    model: str
    data: str
    target: str
    options: tuple[str, ...] = ()

    def command(self, name: str, *more: str) -> str:
        """Return a command on the model and the data."""
        data = "DATA" if self.data == "-" else self.data
        return typed(name, self.model, data, *self.options, *more)

    def clean(self) -> str:
        """Return the command that looks for wrong labels in the data."""
        data = "DATA" if self.data == "-" else self.data
        own = [] if self.target == "" else ["--target", self.target]
        return typed("clean", data, *own)


def too_few(scored: "ScoredRows", inputs: Inputs) -> Verdict:
    """Refuse a claim from fewer than ten rows."""
    n = len(scored.y)
    rows = f"{n} {scored.noun if n > 1 else scored.noun.removesuffix('s')}"
    quality = f"Too few rows for a claim: {rows}, and {FEWEST} are the least for an interval."
    return Verdict(quality, f"To see each row: {inputs.command('explain')}", {"n": n})


# --- classes ------------------------------------------------------------------------------------


def judge_classes(
    model: Any, scored: "ScoredRows", found: dict[str, Any], inputs: Inputs, n_resamples: int
) -> Verdict:
    """Judge a classifier; `found` is the result of `nearwise.cli.scores.judge`."""
    import numpy as np

    y, halves = scored.y, scored.halves
    if len(y) < FEWEST:
        return too_few(scored, inputs)
    proba, classes = halves["model"], [str(label) for label in model.classes_]
    predicted, confidence = proba.argmax(axis=1), proba.max(axis=1)
    right, common = predicted == y, int(np.argmax(model.fitted_.rows_per_class))
    losses = {n: -np.log(np.maximum(p[np.arange(len(y)), y], 1e-300)) for n, p in halves.items()}
    facts: dict[str, Any] = {
        "n": len(y),
        "accuracy": share_of(right),
        "largest_class": {"class": classes[common], "accuracy": float((y == common).mean())},
        "accuracy_gain": share_difference(right, y == common),
    }
    if len(classes) == 2 and 0 < y.sum() < len(y):
        facts["auc"] = area_under_curve(y == 1, proba[:, 1])
    facts |= {
        "ece": found["metrics"]["ece"],
        "ece_by_chance": calibration_by_chance(confidence),
        "signed_gap": found["metrics"]["signed_gap"],
        "nll": found["metrics"]["nll"],
    }
    for part in ("base alone", "neighbors alone"):
        gain = mean_difference(losses[part], losses["model"], n_resamples)
        facts[f"nll_gain_on_{part.replace(' ', '_')}"] = gain
    pieces = [_accuracy_words(facts, scored.what), _auc_words(facts), _honesty_words(facts)]
    pieces.append(_nll_words(facts, found, has_base=model.report_.choice.get("base") is not None))
    advice = _advice(facts, y, predicted, confidence, classes, found, inputs)
    return Verdict(" · ".join(filter(None, pieces)) + ".", advice, facts)


def _accuracy_words(facts: dict[str, Any], what: str) -> str:
    accuracy, common = facts["accuracy"], facts["largest_class"]
    words = {1: "better than", 0: "not beyond chance better than", -1: "worse than"}
    how = words[facts["accuracy_gain"].sign]
    return (
        f"Accuracy {_percents(accuracy)} on {what}, {how} always answering "
        f"{common['class']} ({percent(common['accuracy'])})"
    )


def _auc_words(facts: dict[str, Any]) -> str:
    if "auc" not in facts:
        return ""
    area = facts["auc"]
    return f"AUC {area.value:.3f} ({area.low:.3f} to {area.high:.3f})"


def _honesty_words(facts: dict[str, Any]) -> str:
    ece, chance, gap = facts["ece"], facts["ece_by_chance"], facts["signed_gap"]
    by_chance = f"ECE {ece:.3f}, up to {chance:.3f} by chance"
    if ece <= chance:
        return f"probabilities honest ({by_chance})"
    if abs(gap) < ece / 2:
        return f"probabilities off ({by_chance})"
    return f"probabilities too {'high' if gap > 0 else 'low'} by {percent(abs(gap))} ({by_chance})"


def _nll_words(facts: dict[str, Any], found: dict[str, Any], *, has_base: bool) -> str:
    base = "the base alone" if has_base else "the class shares"
    names = {"base_alone": base, "neighbors_alone": "the neighbors alone"}
    groups: dict[str, list[str]] = {}
    for part, name in names.items():
        relation = _RELATION[facts[f"nll_gain_on_{part}"].sign]
        groups.setdefault(relation, []).append(f"{name} ({found[part]['nll']:.3f})")
    compared = ", ".join(f"{how} {' and '.join(parts)}" for how, parts in groups.items())
    return f"NLL {facts['nll']:.3f}, {compared}"


def _advice(
    facts: dict[str, Any],
    y: "np.ndarray",
    predicted: "np.ndarray",
    confidence: "np.ndarray",
    classes: list[str],
    found: dict[str, Any],
    inputs: Inputs,
) -> str:
    """Say what to do next, by the first finding that applies."""
    right = predicted == y
    sure = confidence >= _VERY_SURE
    n_wrong, expected = int((~right & sure).sum()), float((1 - confidence[sure]).sum())
    facts["very_sure"] = {"rows": int(sure.sum()), "wrong": n_wrong, "expected": expected}
    missed = [
        f"{name} ({n} rows)"
        for i, name in enumerate(classes)
        if (n := int((y == i).sum())) and not (predicted == i).any()
    ]
    if more_than_expected(n_wrong, expected):
        return (
            f"Of {sure.sum()} rows with a probability of 95 % or more, {n_wrong} are wrong, and "
            f"{expected:.1f} were expected: labels may be wrong. To look at them: {inputs.clean()}"
        )
    can_select = "selective" in found
    if missed and can_select:
        return (
            f"Never predicted: {listed(missed, n=5)}. Sets show where such a class is possible: "
            f"{inputs.command('predict', '--sets', '--out', 'sets.csv')}"
        )
    if not can_select:
        return f"To see the neighbors behind answers: {inputs.command('explain')}"
    if facts["accuracy_gain"].sign <= 0 and facts.get("auc", Estimate(0, 0, 0)).low <= 0.5:
        return (
            "The columns do not tell the classes apart beyond chance: more rows or other columns "
            f"are needed. What the model uses: {typed('inspect', inputs.model)}"
        )
    return _selective_advice(facts, right, confidence, inputs)


def _selective_advice(
    facts: dict[str, Any], right: "np.ndarray", confidence: "np.ndarray", inputs: Inputs
) -> str:
    """Suggest the largest share of rows with half of the errors, or else 80 %."""
    import numpy as np

    order, all_wrong = np.argsort(-confidence, kind="stable"), float((~right).mean())
    chosen: tuple[float, Estimate] | None = None
    for share in _SHARES:
        wrong = share_of(~right[order[: max(1, round(share * len(right)))]])
        if wrong.value <= all_wrong / 2 or (chosen is None and share == 0.8):
            chosen = share, wrong
        if wrong.value <= all_wrong / 2:
            break
    assert chosen is not None  # 0.8 is one of the shares
    share, wrong = chosen
    facts["accept"] = {"share": share, "wrong": wrong, "wrong_of_all": all_wrong}
    command = inputs.command("predict", "--coverage", f"{share:g}", "--out", "answers.csv")
    return (
        f"Of the {100 * share:.0f} % surest rows {_percents(wrong)} are wrong, of all "
        f"{percent(all_wrong)}. To accept such rows and leave the others to a person: {command}"
    )


# --- numbers ------------------------------------------------------------------------------------


def judge_numbers(
    model: Any, scored: "ScoredRows", found: dict[str, Any], inputs: Inputs, n_resamples: int
) -> Verdict:
    """Judge a regressor; `found` is the result of `nearwise.cli.scores.judge`."""
    import numpy as np

    y, parts = scored.y, scored.parts
    if len(y) < FEWEST:
        return too_few(scored, inputs)
    away = abs(y - parts["prediction"])
    mean = float(model.fitted_.numbers.mean())
    of_mean, of_base = abs(y - mean), abs(y - parts["base"])
    facts: dict[str, Any] = {
        "n": len(y),
        "mae": mean_difference(away, np.zeros(len(y)), n_resamples),
        "mean": {"value": mean, "mae": float(of_mean.mean())},
        "mae_gain_on_mean": mean_difference(of_mean, away, n_resamples),
        "mae_gain_on_base_alone": mean_difference(of_base, away, n_resamples),
    }
    words = {1: "better than", 0: "not beyond chance better than", -1: "worse than"}
    how = words[facts["mae_gain_on_mean"].sign]
    pieces = [
        f"MAE {_values(facts['mae'])} on {scored.what}, {how} always answering the mean "
        f"({brief(facts['mean']['mae'])})"
    ]
    for name in ("rmse", "crps"):
        estimate = Estimate(found["metrics"][name], *found["intervals"][name])
        pieces.append(f"{name.upper()} {_values(estimate)}")
    if "interval" in parts:
        low, high = parts["interval"].T
        facts["coverage"] = share_of((low <= y) & (y <= high))
        facts["confidence"] = found["confidence"]
        width = f"{100 * found['confidence']:.0f} % intervals"
        pieces.append(f"{width} hold {_percents(facts['coverage'])} of the rows")
    if model.report_.choice.get("base"):
        relation = _RELATION[facts["mae_gain_on_base_alone"].sign]
        pieces.append(f"{relation} the base alone (MAE {brief(float(of_base.mean()))})")
    return Verdict(" · ".join(pieces) + ".", _number_advice(facts, away, parts, inputs), facts)


def _number_advice(
    facts: dict[str, Any], away: "np.ndarray", parts: dict[str, Any], inputs: Inputs
) -> str:
    import numpy as np

    if facts["mae_gain_on_mean"].sign <= 0:
        return (
            "The columns do not tell the targets apart beyond chance: more rows or other columns "
            f"are needed. What the model uses: {typed('inspect', inputs.model)}"
        )
    if "interval" not in parts:
        return f"To see the neighbors behind answers: {inputs.command('explain')}"
    held, confidence = facts["coverage"], facts["confidence"]
    if held.high < confidence:
        wider = (1 + confidence) / 2
        command = inputs.command("predict", "--confidence", f"{wider:g}", "--out", "answers.csv")
        return (
            f"Intervals are too narrow: these rows differ from the training rows. Wider: {command}"
        )
    width = parts["interval"][:, 1] - parts["interval"][:, 0]
    few = np.argsort(width, kind="stable")[: max(1, round(0.8 * len(width)))]
    facts["accept"] = {"share": 0.8, "mae": float(away[few].mean())}
    if away[few].mean() > _WORTH * away.mean():
        return (
            f"Narrow intervals are hardly better here (MAE {brief(away[few].mean())} of the 80 % "
            f"narrowest). To see the neighbors behind answers: {inputs.command('explain')}"
        )
    command = inputs.command("predict", "--coverage", "0.8", "--out", "answers.csv")
    return (
        f"The 80 % of the rows with the narrowest intervals have MAE {brief(away[few].mean())}, "
        f"all {brief(away.mean())}. To accept such rows and leave the others to a person: {command}"
    )


def brief(value: float) -> str:
    """Format a number with three digits, without an exponent from 0.001 to 10^15."""
    if 1000 <= abs(value) < 1e15:
        return f"{value:.0f}"
    return f"{value:.3g}"


def _values(estimate: Estimate) -> str:
    return f"{brief(estimate.value)} ({brief(estimate.low)} to {brief(estimate.high)})"


def _percents(estimate: Estimate) -> str:
    low, high = 100 * estimate.low, 100 * estimate.high
    return f"{percent(estimate.value)} ({low:.1f} to {high:.1f})"
