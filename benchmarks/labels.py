"""Several labels per row: the presets against nearest neighbors, forests and classifier chains.

Target: the default's macro Brier score is below that of every peer, in the mean over the tasks.

    python benchmarks/labels.py --data-root DATA
    python benchmarks/labels.py --data-root DATA --tasks flags --methods instant --seeds 101

Files in DATA are ARFF and XML files of tsoumakas/mulan@43f63890 (data/multi-label): emotions (593
songs, 72 columns, 6 labels), yeast (2,417 genes, 103 columns, 14 labels), scene (2,407 pictures,
294 columns, 6 labels; scene-train.arff and scene-test.arff) and cal500 (502 songs, 68 columns, 174
labels, many of them rare). "made" is scikit-learn's
make_multilabel_classification: 1,000 rows, 20 columns, 8 labels. Choices were made on flags,
foodtruck and birds.

A seed draws the remembered and the judged rows: 70 % and 30 %. Labels with fewer than 10 rows are
left out. All peers see the same rows. Neighbors, weights and C are chosen by the Brier score in
five folds of the remembered rows. Seeds above 100 are for choices, 0 to 4 for the record. Fits are
in CPU seconds with the growth of the process in MiB, one row is the median wall time of 11; one
thread.
"""

import time
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from keeping import RESULTS, keep_runs, listed, means_by, milliseconds, options_of
from nearwise_lab.experiments.measure import PeakMemory
from scipy.io import arff
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import make_multilabel_classification
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, train_test_split
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from nearwise import AttnKNNClassifier
from nearwise.metrics import evaluate_labels

Fitted = Callable[[pd.DataFrame], np.ndarray]
_FEWEST = 10  # rows with, and without, a label
MEASURES = {
    "macro_brier": 4,
    "macro_nll": 4,
    "mean_average_precision": 4,
    "macro_f1": 4,
    "micro_f1": 4,
    "fit_cpu_seconds": 1,
    "one_row_ms": 1,
}
TASKS = ("emotions", "yeast", "scene", "made", "cal500")


def read_labels(root: Path, task: str, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows of a task, and their labels (n, L)."""
    if task == "made":
        X, y = make_multilabel_classification(1000, 20, n_classes=8, random_state=seed)
        return pd.DataFrame(X), y[:, _often(y)]
    files = [f"{task}.arff"] if task != "scene" else ["scene-train.arff", "scene-test.arff"]
    table = pd.concat([_read(root / file) for file in files], ignore_index=True)
    names = [one.attrib["name"] for one in ET.parse(root / f"{task}.xml").iter() if one.attrib]
    y = table[names].astype(float).astype(int).to_numpy()
    return table.drop(columns=names), y[:, _often(y)]


def _often(y: np.ndarray) -> np.ndarray:
    """Whether enough rows have, and lack, each label."""
    found: np.ndarray = (y.sum(axis=0) >= _FEWEST) & ((1 - y).sum(axis=0) >= _FEWEST)
    return found


def _read(path: Path) -> pd.DataFrame:
    """Read an ARFF file, with quotes taken from the names and bytes as text."""
    table = pd.DataFrame(arff.loadarff(path)[0])
    table.columns = [name.strip("'\"").replace("\\'", "'") for name in table.columns]
    for name in [name for name in table if table[name].dtype.kind == "O"]:
        table[name] = table[name].str.decode("utf-8")
    return table


def _proba(model: Any, X: Any) -> np.ndarray:
    """Probability of each label, (n, L); a label that is the same in all rows is sure."""
    found = model.predict_proba(X)
    if not isinstance(found, list):
        return np.asarray(found)
    classes: Any = getattr(model, "classes_", None)
    each = []
    for at, one in enumerate(found):
        sure = one.shape[1] == 1
        each.append(np.full(len(one), float(classes[at][0])) if sure else one[:, 1])
    return np.column_stack(each)


def peer(*models: Any) -> Callable[..., Fitted]:
    """Fit the model of the least Brier score in five folds."""

    def fit(X: pd.DataFrame, y: np.ndarray, seed: int) -> Fitted:
        columns = pd.get_dummies(X).columns

        def dense(rows: pd.DataFrame) -> np.ndarray:
            wide = pd.get_dummies(rows).reindex(columns=columns, fill_value=0)
            return np.asarray(wide, dtype=float)

        whole, losses = dense(X), np.zeros(len(models))
        if len(models) > 1:
            for train, held in KFold(5, shuffle=True, random_state=seed).split(whole):
                for at, model in enumerate(models):
                    proba = _proba(model.fit(whole[train], y[train]), whole[held])
                    losses[at] += ((proba - y[held]) ** 2).sum()
        best = models[int(losses.argmin())].fit(whole, y)
        return lambda rows: _proba(best, dense(rows))

    return fit


def ours(preset: Any) -> Callable[..., Fitted]:
    """Fit a preset."""

    def fit(X: pd.DataFrame, y: np.ndarray, seed: int) -> Fitted:
        model = AttnKNNClassifier(preset=preset, n_jobs=1, random_state=seed).fit(X, y)
        return partial(_proba, model)

    return fit


def scaled(model: Any) -> Any:
    """Pipeline of a model of standardized columns."""
    return make_pipeline(StandardScaler(), model)


class OfAnyLabel(ClassifierMixin, BaseEstimator):
    """Logistic regression, also of a label that all rows of a fold have, or none has."""

    def __init__(self, C: float = 1.0) -> None:
        self.C = C

    def fit(self, X: np.ndarray, y: np.ndarray) -> "OfAnyLabel":
        """Fit to labels 0 and 1."""
        self.classes_ = np.array([0, 1])
        self.only_ = int(y[0]) if len(np.unique(y)) == 1 else None
        if self.only_ is None:
            self.model_ = LogisticRegression(C=self.C, max_iter=1000).fit(X, y)
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Probabilities of 0 and 1."""
        if self.only_ is not None:
            return np.tile(np.eye(2)[self.only_], (len(X), 1))
        proba: np.ndarray = self.model_.predict_proba(X)
        return proba

    def predict(self, X: np.ndarray) -> np.ndarray:
        """The likelier label."""
        return self.predict_proba(X).argmax(axis=1)


NEIGHBORS = [
    scaled(KNeighborsClassifier(k, weights=weights))
    for k in (5, 10, 20, 40)
    for weights in ("uniform", "distance")
]
LOGISTIC = [OfAnyLabel(C) for C in (0.01, 0.1, 1, 10)]
FOREST = {"n_estimators": 500, "n_jobs": 1, "random_state": 0}
LEAVES = (1, 3, 5)
METHODS: dict[str, Any] = {
    "label shares": peer(DummyClassifier()),
    "k-NN": peer(*NEIGHBORS),
    "random forest": peer(*[RandomForestClassifier(min_samples_leaf=n, **FOREST) for n in LEAVES]),
    "extra trees": peer(*[ExtraTreesClassifier(min_samples_leaf=n, **FOREST) for n in LEAVES]),
    "logistic per label": peer(*[scaled(MultiOutputClassifier(one)) for one in LOGISTIC]),
    "chain of logistic": peer(*[scaled(ClassifierChain(one)) for one in LOGISTIC]),
    "instant": ours("instant"),
    "default": ours("default"),
}


def measure(root: Path, task: str, method: str, seed: int) -> dict[str, Any]:
    """Fit and judge one method."""
    X, y = read_labels(root, task, seed)
    X, new, y, truth = train_test_split(X, y, test_size=0.3, random_state=seed)
    X, new = X.reset_index(drop=True), new.reset_index(drop=True)
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        with PeakMemory() as peak:
            start = time.process_time()
            predict = METHODS[method](X, y, seed)
            seconds = time.process_time() - start
        proba = predict(new)
        times = [milliseconds(partial(predict, new.iloc[[row]])) for row in range(11)]
    found = {"n_train": len(y), "n_test": len(truth), "n_labels": y.shape[1]}
    found |= evaluate_labels(truth, np.clip(proba, 0, 1))
    return found | {
        "fit_cpu_seconds": seconds,
        "peak_mib": peak.mib,
        "one_row_ms": float(np.median(times)),
    }


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the seeds of each task and method, choices apart from the record."""
    return means_by(runs, {"task": TASKS, "method": METHODS}, MEASURES)


def main() -> None:
    """Measure what the record lacks."""
    parser = options_of(
        __doc__, data_root=Path("data"), tasks=",".join(TASKS), methods=";".join(METHODS),
        seeds="0,1,2,3,4", out=RESULTS / "labels.json",
    )  # fmt: skip
    options = parser.parse_args()
    wanted = [
        {"task": task, "method": method, "seed": seed}
        for seed in listed(options.seeds, int)
        for task in listed(options.tasks)
        for method in options.methods.split(";")
    ]
    keep_runs(wanted, partial(measure, options.data_root), summary, options.out)


if __name__ == "__main__":
    main()
