"""Rows scored by ``nearwise evaluate``: new rows, and separately training rows."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nearwise.cli.rows.rows import take_rows
from nearwise.cli.scores import in_rows, measure
from nearwise.cli.tables import percent
from nearwise.names import listed

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from nearwise.estimators import LearnedRows
    from nearwise.estimators.opening import Estimator

_HEADLINE = {"accuracy": "accuracy", "nll": "NLL", "rmse": "RMSE", "crps": "CRPS"}
MANY_REPEATS = 0.01  # share of repeated rows above which new rows are expected to repeat some, too
_DEVIATIONS = 3  # allowed standard deviations above the expected share of repeats


@dataclass(frozen=True)
class ScoredRows:
    """Rows of a file with their predictions, and facts for the report.

    `at` are the positions of the scored rows in the file, `y` their class positions, or numbers.
    `parts` are `Parts`, or for numbers the result of `in_rows`. The rows are `new`, or all are
    training rows and each is predicted as if new. `found` marks rows that equal training rows;
    `apart` has metrics of the `n_apart` of them that can be predicted as if new. If remembered rows
    repeat so often that this many new rows would equal one, they are `among` the new ones; if they
    repeat less often, `together` has the metrics of all. `compared` describes the compared columns.
    """

    at: "np.ndarray"
    y: "np.ndarray"
    parts: Any
    new: bool
    found: "LearnedRows"
    noun: str
    compared: str
    apart: dict[str, float] | None = None
    n_apart: int = 0
    together: dict[str, float] | None = None
    among: bool = False

    @property
    def n_learned(self) -> int:
        """Number of rows of the file that equal training rows."""
        return int((~self.found.new).sum())

    @property
    def halves(self) -> "dict[str, np.ndarray]":
        """Probabilities of the model, of its base and of its neighbors."""
        return {
            "model": self.parts.proba,
            "base alone": self.parts.base_proba,
            "neighbors alone": self.parts.neighbor_proba,
        }

    @property
    def what(self) -> str:
        """Description of the scored rows for a title."""
        n = len(self.y)
        if not self.new:
            return f"{n} training {self.noun}, predicted out of sample"
        return f"{n} {'new ' if self.n_learned and not self.among else ''}{self.noun}"

    @property
    def measured_on(self) -> str:
        """Description of the scored rows within a sentence."""
        if not self.new:
            return f"{self.what}: each by parts of the model that were not fitted on it"
        return f"{len(self.y)} {self.noun}{'' if self.among else ' not in the training data'}"

    @property
    def remarks(self) -> list[str]:
        """Sentences about rows that equal training rows, if any."""
        sentences, repeats = [], f"{percent(self.found.repeats, 0)} of the {self.noun} in memory"
        if self.n_learned:
            equal = f"equal training {self.noun}, {self.compared}"
            n_rows = len(self.y) if self.among else self.n_learned + self.new * len(self.y)
            sentences.append(f"{self.n_learned} of {n_rows} {self.noun} {equal}.")
            scored = self.n_apart if self.new else len(self.y)
            left = 0 if self.among else self.n_learned - scored
            if self.among:
                sentences.append(
                    f"{repeats} have a duplicate, so new ones may equal them by chance: they "
                    "count as new and are in the scores."
                )
            elif self.apart is not None:
                sentences.append(
                    f"{self.n_apart} of them, predicted out of sample and not in the scores: "
                    f"{_in_words(self.apart)}."
                )
            if self.found.repeats >= MANY_REPEATS and not (self.among or self.found.compared):
                sentences.append(
                    f"{repeats} have a duplicate, so new ones may equal them by chance: some of "
                    f"the {self.n_learned} may be new."
                )
            if self.together is not None:
                sentences.append(
                    f"All {len(self.y) + self.n_apart} {self.noun} together: "
                    f"{_in_words(self.together)}."
                )
            if not self.new:
                sentences.append(f"Scores on new {self.noun} would be a better estimate.")
            if left:
                sentences.append(
                    f"{left} of them are left out: all networks were trained on them, so they "
                    "have no out-of-sample predictions."
                )
        if self.found.n_forgotten and self.new:
            sentences.append(
                f"The training data also had {self.found.n_forgotten} {self.noun} that are no "
                "longer in memory: whether these are among the new ones is unknown."
            )
        return sentences

    def as_json(self) -> dict[str, Any]:
        """Return numbers about rows that equal training rows."""
        return {
            "new": self.new,
            "n_learned": self.n_learned,
            "learned_in_scores": self.among,
            "n_learned_scored": self.n_apart if self.new else len(self.y),
            "learned_metrics": self.apart,
            "repeats": self.found.repeats,
            "metrics_together": self.together,
            "n_forgotten": self.found.n_forgotten,
            "remarks": self.remarks,
        }


def _in_words(metrics: dict[str, float]) -> str:
    return ", ".join(f"{_HEADLINE[n]} {metrics[n]:.4f}" for n in _HEADLINE if n in metrics)


def score_rows(
    model: "Estimator",
    features: "pd.DataFrame | np.ndarray",
    labels: Any,
    y: "np.ndarray",
    where: str,
    noun: str,
) -> ScoredRows:
    """Predict the new rows of a file, or if there are none, training rows as if new.

    `y` has the positions of `labels` among the model's classes, or the numbers. Rows that equal
    remembered ones still count as new if remembered rows repeat, no id distinguishes rows, and not
    more of them are equal than expected of new rows. ValueError if all rows are training rows and
    none can be predicted as if new.
    """
    import numpy as np

    from nearwise import review

    found = review(model).learned(features, labels)
    fresh = np.flatnonzero(found.new)
    common = found, noun, _columns_compared(model, features, found.compared)
    repeat = found.repeats >= MANY_REPEATS and not found.compared
    if len(fresh) < len(y) and repeat and by_chance(model, found, labels):
        every = _predicted(model, features, y)
        return ScoredRows(np.arange(len(y)), y, every, True, *common, among=True)
    again, parts = _predict_learned(model, found, y)
    if len(fresh):
        apart = _measured(y[again], parts) if len(again) else None
        answered, together = _predicted(model, take_rows(features, fresh), y[fresh]), None
        if apart is not None and repeat:
            together = _measured(y[np.concatenate([fresh, again])], answered, parts)
        others = apart, len(again), together
        return ScoredRows(fresh, y[fresh], answered, True, *common, *others)
    if not len(again):
        raise ValueError(
            f"{where}: all {len(y)} {noun} are in the training data of the base or the networks, "
            f"so there are no out-of-sample predictions. Give {noun} not in the training data."
        )
    return ScoredRows(again, y[again], parts, False, *common)


def _predicted(model: "Estimator", X: Any, y: "np.ndarray") -> Any:
    query: Any = model.query(X)
    if hasattr(query, "parts"):
        return query.parts
    return in_rows(y, query.mixture, query.base())


def _predict_learned(
    model: "Estimator", found: "LearnedRows", y: "np.ndarray"
) -> "tuple[np.ndarray, Any]":
    """Predict training rows as if new, as far as possible; return positions and parts."""
    import numpy as np

    from nearwise.estimators import AttnKNNClassifier, review
    from nearwise.estimators.model.number_memory import LOCATION, TARGET

    if found.new.all():
        return np.zeros(0, dtype=int), None
    if isinstance(model, AttnKNNClassifier):
        return review(model).predict_learned(found)
    rows, bank = np.flatnonzero(~found.new), model.memory_
    at = bank.positions(found.ids[rows])
    known = model.fitted_.predictor.judged[at].numpy()
    rows, at = rows[known], at[known]
    if not len(rows):
        return rows, None
    base = bank.columns.get(LOCATION, bank.columns[TARGET].mean().expand(len(bank)))
    mixture, _ = model.fitted_.predictor.predict_left_out(at)
    return rows, in_rows(y[rows], mixture, base[at].numpy())


def _measured(y: "np.ndarray", *parts: Any) -> dict[str, float]:
    """Return the metrics of rows in one or several blocks."""
    import numpy as np

    from nearwise.metrics import evaluate_probabilities

    if isinstance(parts[0], dict):
        return measure(y, {n: np.concatenate([one[n] for one in parts]) for n in parts[0]})
    return evaluate_probabilities(y, np.concatenate([one.proba for one in parts]))


def by_chance(model: "Estimator", found: "LearnedRows", labels: Any) -> bool:
    """Whether no more rows equal remembered ones than expected of new rows.

    Rows of the training table would each equal a different remembered row with the same label.
    """
    import numpy as np

    alike = found.ids >= 0
    own = model.fitted_.labels_at(model.memory_.positions(found.ids[alike]))
    same = (own == labels.to_numpy()[alike]).all()
    each_its_own = len(np.unique(found.ids[alike])) == alike.sum() and same
    deviation = math.sqrt(found.repeats * (1 - found.repeats) / len(labels))
    usual = alike.mean() <= found.repeats + _DEVIATIONS * deviation
    return bool(usual and not each_its_own)


def _columns_compared(
    model: "Estimator", features: "pd.DataFrame | np.ndarray", ids: "tuple[str, ...]"
) -> str:
    """Describe the compared columns, and absent columns that would distinguish rows."""
    import numpy as np
    import pandas as pd

    if not isinstance(features, pd.DataFrame):
        return "in every pixel" if isinstance(features, np.ndarray) else "in every column"
    uses = model.report_.columns
    left_out = [name for name, use in uses.items() if use == "left out"]
    n_used = len(uses) - len(left_out)
    where = "in the column" if n_used == 1 else f"in all {n_used} columns"
    if ids:
        return f"{where} that the model uses and in {listed(ids)}"
    absent = [name for name in left_out if name not in features or features[name].isna().all()]
    told = f" ({listed(absent)}, left out by the model, is not in the file)" if absent else ""
    return f"{where} that the model uses{told}"
