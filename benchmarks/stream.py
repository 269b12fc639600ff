"""A memory that learns: classes that arrive in turn, and labels that change, on digits.

"classes": the stream starts with two classes, the other eight arrive one after the other, 20 rows
per batch. "drift": 300 rows are fitted, then 40 rows per batch; half way two classes swap their
labels, and accuracy is that on the labels of the moment. A method takes every batch as it comes;
what it is compared with is fitted from scratch at every checkpoint (a class is complete; five in
the drift), on everything seen or on the last 400 rows. Costs are seconds of processor time, without
predicting, and without the first fit, which is the same for all.

    python benchmarks/stream.py
    python benchmarks/stream.py --streams drift --seeds 0 --methods partial_fit

Rows that the JSON file holds already are kept; delete it to begin again.
"""

import time
import warnings
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch
from keeping import RESULTS, conditions, interval, keep, listed, options_of, read
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier

from nearwise import AttnKNNClassifier
from nearwise.metrics import ece, nll

CAPACITY = 400
NO_BASE: dict[str, Any] = {"estimator": None}
OF_BASE: dict[str, Any] = {"cv": 3}
# name: (settings, how it learns); "refit" and "window" are what the others are compared with.
METHODS: dict[str, tuple[dict[str, Any], str]] = {
    "refit on everything": (NO_BASE, "refit"),
    "refit on the last 400": (NO_BASE, "window"),
    "partial_fit": (NO_BASE, "partial_fit"),
    "add, never refreshed": (NO_BASE, "add"),
    "partial_fit, 400 rows, reservoir": (NO_BASE, "partial_fit"),
    "partial_fit, 400 rows, age": (NO_BASE | {"settings": {"eviction": "age"}}, "partial_fit"),
    "uniform k-NN, k = 5, on everything": ({}, "uniform"),
    "with a base: refit on everything": (OF_BASE, "refit"),
    "with a base: partial_fit": (OF_BASE, "partial_fit"),
}
REFERENCE = {name: "refit on everything" for name in METHODS} | {
    "with a base: partial_fit": "with a base: refit on everything"
}


class Stream:
    """Rows in the order of their arrival, cut into batches, with checkpoints between."""

    def __init__(self, kind: str, seed: int) -> None:
        X, y = load_digits(return_X_y=True)
        rng = np.random.default_rng(seed)
        train, test = train_test_split(
            np.arange(len(y)), test_size=0.2, stratify=y, random_state=seed
        )
        train = rng.permutation(train)
        if kind == "classes":
            turns = [train[y[train] == c] for c in rng.permutation(10)]
            train = np.concatenate([rng.permutation(np.concatenate(turns[:2])), *turns[2:]])
            ends = np.cumsum([len(t) for t in turns])[1:]
            size, self.first = 20, int(ends[0])
            self.checkpoints = set(ends.tolist())
        else:
            size, self.first = 40, 300
            self.checkpoints = {300, 580, 860, 1020, 1180, len(train)}
        self.X, self.y, self.X_test = X[train], y[train].copy(), X[test]
        self.kind, self.y_test = kind, y[test]
        self.drift = self.first + (len(train) - self.first) // 80 * 40  # half way, on a batch
        self.swapped = rng.permutation(10)[:2]
        if kind == "drift":
            self.y[self.drift :] = self.swap(self.y[self.drift :])
        marks = sorted({*range(self.first, len(train), size), *self.checkpoints})
        self.cuts = list(pairwise(marks))

    def swap(self, y: np.ndarray) -> np.ndarray:
        """Labels after the drift."""
        one, other = self.swapped
        return np.where(y == one, other, np.where(y == other, one, y))

    def test_at(self, n_seen: int) -> tuple[np.ndarray, np.ndarray]:
        """Test rows of the classes seen so far, with the labels of the moment."""
        truth = self.y_test
        if self.kind == "drift" and n_seen > self.drift:
            truth = self.swap(truth)
        rows = np.isin(truth, self.y[:n_seen])
        return self.X_test[rows], truth[rows]


def run(kind: str, seed: int, name: str) -> dict[str, Any]:
    """Send one method through one stream."""
    stream = Stream(kind, seed)
    settings, way = METHODS[name]
    capacity = CAPACITY if "400 rows" in name else None
    spent, points, n_refits = 0.0, [], 0
    start = time.process_time()
    model = fit(settings, capacity, way, stream, stream.first, seed)
    first = time.process_time() - start
    points.append(score(model, stream, stream.first, spent))
    for begin, end in stream.cuts:
        start = time.process_time()
        if way in ("refit", "window", "uniform"):
            if end not in stream.checkpoints:
                continue
            model = fit(settings, capacity, way, stream, end, seed)
            n_refits += 1
        else:
            learn = model.partial_fit if way == "partial_fit" else model.add
            learn(stream.X[begin:end], stream.y[begin:end])
        spent += time.process_time() - start
        if end in stream.checkpoints:
            points.append(score(model, stream, end, spent))
    return {
        "stream": kind,
        "method": name,
        "seed": seed,
        "first_fit_seconds": round(first, 3),
        "refits": n_refits,
        "remembered": len(model.memory_) if way != "uniform" else len(stream.y),
        "drift_at": stream.drift if kind == "drift" else None,
        "points": points,
    }


def fit(
    settings: dict[str, Any], capacity: int | None, way: str, stream: Stream, n: int, seed: int
) -> Any:
    """Fit from scratch on the first n rows, or the last 400 of them."""
    since = max(0, n - CAPACITY) if way == "window" else 0
    X, y = stream.X[since:n], stream.y[since:n]
    if way == "uniform":
        return KNeighborsClassifier(5).fit(X, y)
    model = AttnKNNClassifier(**settings, random_state=seed, n_jobs=1)
    return model.set_params(settings__capacity=capacity).fit(X, y)


def score(model: Any, stream: Stream, n_seen: int, spent: float) -> dict[str, Any]:
    """Accuracy, NLL and ECE on the labels of the moment."""
    X, y = stream.test_at(n_seen)
    found = model.predict_proba(X)
    proba = np.full((len(X), 10), 1e-9)
    proba[:, model.classes_] = found
    proba /= proba.sum(1, keepdims=True)
    return {
        "seen": n_seen,
        "accuracy": round(float((proba.argmax(1) == y).mean()), 5),
        "nll": round(nll(y, proba), 5),
        "ece": round(ece(y, proba), 5),
        "seconds": round(spent, 3),
    }


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a stream and method: final scores, cost, and differences from refitting."""
    rows = []
    of = {(r["stream"], r["method"], r["seed"]): r for r in runs}
    for kind in dict.fromkeys(r["stream"] for r in runs):
        for method in METHODS:
            seeds = sorted(s for k, m, s in of if (k, m) == (kind, method))
            if not seeds:
                continue
            last = [of[kind, method, s]["points"][-1] for s in seeds]
            row: dict[str, Any] = {"stream": kind, "method": method, "seeds": seeds}
            for metric in ("accuracy", "nll", "ece", "seconds"):
                row[metric] = interval([p[metric] for p in last], 5)
            mean = [np.mean([p["accuracy"] for p in of[kind, method, s]["points"]]) for s in seeds]
            row["accuracy_over_time"] = interval(mean, 5)
            pairs = [s for s in seeds if (kind, REFERENCE[method], s) in of]
            if pairs and REFERENCE[method] != method:
                mine = [of[kind, method, s]["points"][-1] for s in pairs]
                theirs = [of[kind, REFERENCE[method], s]["points"] for s in pairs]
                for key, compared in (
                    ("accuracy_difference", lambda a, b: a["accuracy"] - b[-1]["accuracy"]),
                    ("share_of_refits", lambda a, b: a["seconds"] / b[-1]["seconds"]),
                    (
                        "share_of_last_refit",
                        lambda a, b: a["seconds"] / (b[-1]["seconds"] - b[-2]["seconds"]),
                    ),
                ):
                    row[key] = interval(map(compared, mine, theirs), 5)
            rows.append(row)
    return rows


def main() -> None:
    """Run what is missing and keep every row."""
    out = RESULTS / "stream.json"
    parser = options_of(__doc__, streams="classes,drift", seeds="0,1,2", methods="", out=out)
    options = parser.parse_args()
    runs = read(options.out).get("runs", [])
    done = {(r["stream"], r["method"], r["seed"]) for r in runs}
    torch.set_num_threads(1)  # processor time then is the work done
    warnings.simplefilter("ignore")
    wanted = product(listed(options.seeds, int), listed(options.streams), METHODS)
    for seed, kind, name in wanted:
        forgets = kind == "classes" and METHODS[name][1] == "window"  # whole classes
        if (kind, name, seed) in done or forgets or not name.startswith(options.methods):
            continue
        runs.append(run(kind, seed, name))
        print(kind, seed, name, *runs[-1]["points"][-1].values(), flush=True)
        keep(conditions() | {"results": summary(runs), "runs": runs}, options.out)


if __name__ == "__main__":
    main()
