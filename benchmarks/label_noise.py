"""Wrong labels: accuracy and calibration on clean test rows, and finding the wrong labels.

Claims, each a mean over seeds with its 95 % interval: the bars below, for training labels that are
all subject to the noise; every peer gets the same wrapper (temperature and forward correction on
held-out noisy rows, with the transition estimated there). Label issues: average precision of the
ranking of 10 % planted errors, against cleanlab's k-NN on the same features. And what an audit
adds ("attention-audited"): the transition counted on 400 checked rows instead of estimated.

    python benchmarks/label_noise.py --data-root DATA
    python benchmarks/label_noise.py --tasks digits,wine-red --seeds 0,1,2 --methods attention
    python benchmarks/label_noise.py --tasks issues-digits,issues-adult
    python benchmarks/label_noise.py --tasks cifar10n --methods attention,attention-audited
        --rows 8000 --out runs/label_noise_audit
    python benchmarks/label_noise.py --tasks digits-images,mnist --rows 600
        --methods attention,attention-plain --out runs/label_noise_images
    python benchmarks/label_noise.py --judge-only

One row per task, method and seed is kept in runs/label_noise as it finishes; run again, it goes on.
Writes benchmarks/results/label_noise.json.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from keeping import RESULTS, conditions, interval, keep, listed, options_of, read, take
from nearwise_lab.corrupt import label_noise
from nearwise_lab.data import load_dataset, load_human_labels
from nearwise_lab.data.sets import CIFAR10_CLASSES  # the order of the features' class numbers
from nearwise_lab.experiments import get_method
from sklearn.metrics import average_precision_score

from nearwise import review
from nearwise.data import hold_out, split_dataset
from nearwise.estimators import AttnKNNClassifier, audited_transition
from nearwise.estimators.model.label_model import AS_GIVEN
from nearwise.estimators.model.log_linear_pool import fit_temperature
from nearwise.estimators.noise.noisy_labels import ForwardCorrection
from nearwise.estimators.noise.transition import estimate_transition
from nearwise.metrics import evaluate_probabilities

PEERS = ("mlp", "lightgbm", "knn-uniform", "knn-tuned")
METHODS = ("attention", "attention-plain", "attention-audited", *PEERS)
CHECKED = 400  # rows, drawn at random, whose true labels "attention-audited" is told
KEYS = ("accuracy", "nll", "ece", "aurc")


@dataclass(frozen=True)
class Task:
    """A data set, its noise, and the bars for accuracy (at least), NLL and ECE (at most)."""

    dataset: str
    noise: str = "symmetric"
    views: bool = False
    bars: tuple[float | None, float | None, float | None] = (None, None, None)


TASKS = {
    "digits": Task("digits", bars=(0.975, 0.12, 0.03)),
    "wine-red": Task("wine-red", bars=(None, 0.54, 0.055)),
    "adult": Task("adult", bars=(0.870, 0.30, 0.02)),
    "cifar10-features": Task("cifar10-features", bars=(0.872, 0.39, 0.015)),
    "cifar10n": Task("cifar10-features", "worse", bars=(0.848, 0.455, 0.015)),
    "cifar10n-views": Task("cifar10-features", "worse", views=True, bars=(0.860, 0.43, 0.02)),
    "digits-images": Task("digits-images"),
    "mnist": Task("mnist"),
}
ISSUES = {"issues-digits": "digits", "issues-adult": "adult"}


@dataclass(frozen=True)
class Noisy:
    """Training rows with noisy labels, clean test rows, and further views of both."""

    X: Any
    given: np.ndarray
    true: np.ndarray
    X_test: Any
    y_test: np.ndarray
    kind: Any
    views: tuple[list[Any], list[Any]] | None


def load(task: Task, seed: int, options: argparse.Namespace, rate: float = 0.3) -> Noisy:
    """Split by seed, as all comparisons do, and put the noise into the training labels."""
    dataset = load_dataset(task.dataset, data_root=options.data_root, views=task.views)
    train, test = split_dataset(dataset, seed)
    X, y = dataset.rows(train)
    X_test, y_test = dataset.rows(test)
    codes = np.searchsorted(dataset.classes, y)
    if task.noise == "worse":
        named = load_human_labels("worse", data_root=options.data_root)
        given = np.array([CIFAR10_CLASSES.index(name) for name in named])[train]
    else:
        given = label_noise(codes, rate, seed=seed, classes=np.arange(len(dataset.classes)))
    every = dataset.views.values() if task.views else ()
    views = ([v[train] for v in every], [v[test] for v in every]) if task.views else None
    positions = np.searchsorted(dataset.classes, y_test)
    if options.rows and options.rows < len(codes):
        some = np.random.default_rng(1000 + seed).permutation(len(codes))[: options.rows]
        X, codes, given = take(X, some), codes[some], given[some]
        views = None if views is None else ([v[some] for v in views[0]], views[1])
    return Noisy(X, given, codes, X_test, positions, dataset.kind, views)


def attention(data: Noisy, seed: int, method: str) -> tuple[np.ndarray, dict[str, Any]]:
    """Fit the classifier; probabilities of the test rows, and what was chosen."""
    label_noise: Any = None if method == "attention-plain" else "auto"
    if method == "attention-audited":
        some = np.random.default_rng(2000 + seed).permutation(len(data.given))[:CHECKED]
        label_noise = audited_transition(data.given[some], data.true[some])
    given_views, test_views = data.views or (None, None)
    model = AttnKNNClassifier(label_noise=label_noise, random_state=seed)
    model.fit(data.X, data.given, views=given_views)
    proba = model.predict_proba(data.X_test, views=test_views)
    note = {"temperature": model.report_.temperature, **model.report_.choice.get("label_noise", {})}
    return proba, note


def wrapped_peer(name: str, data: Noisy, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Fit a peer on nine tenths; the last tenth gives transition and temperature through it."""
    n_classes = int(data.true.max()) + 1
    train, held_out = hold_out(data.given, 0.1, seed)
    model: Any = get_method(name)(seed, len(train), n_classes, data.kind)
    model.fit(take(data.X, train), data.given[train])
    log_proba = torch.from_numpy(np.log(model.predict_proba(take(data.X, held_out)).clip(1e-6)))
    labels = torch.from_numpy(data.given[held_out])
    weight = torch.ones(len(labels)).double()
    label_model, temperature, rate = AS_GIVEN, 1.0, 0.0
    for _ in range(3):
        temperature, _ = fit_temperature(log_proba, labels, weight, label_model)
        proba = torch.softmax(log_proba / temperature, dim=1)
        matrix = torch.from_numpy(estimate_transition(proba.numpy(), labels.numpy()))
        label_model, rate = ForwardCorrection(matrix=matrix), 1 - float(matrix.diagonal().mean())
    test = torch.from_numpy(np.log(model.predict_proba(data.X_test).clip(1e-6)))
    return torch.softmax(test / temperature, dim=1).numpy(), {
        "temperature": temperature,
        "rate": rate,
    }


def run(task: str, method: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One row: a method on one split."""
    data = load(TASKS[task], seed, options)
    start = time.perf_counter()
    if method.startswith("attention"):
        proba, note = attention(data, seed, method)
    else:
        proba, note = wrapped_peer(method, data, seed)
    scores = evaluate_probabilities(data.y_test, proba)
    return {
        **{key: scores[key] for key in KEYS},
        "seconds": time.perf_counter() - start,
        "n_train": len(data.given),
        "wrong_labels": float((data.given != data.true).mean()),
        "note": note,
    }


def run_issues(task: str, method: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One row: average precision of a ranking of planted errors."""
    data = load(Task(ISSUES[task]), seed, options, rate=0.1)
    start = time.perf_counter()
    wrong = data.given != data.true
    if method == "attention":
        model = AttnKNNClassifier(label_noise="auto", random_state=seed).fit(data.X, data.given)
        issues = review(model).issues()
        order, suspicion = issues["id"].to_numpy(), issues["suspicion"].to_numpy()
        precision = average_precision_score(wrong[order], suspicion)
    else:
        precision = average_precision_score(wrong, cleanlab_knn(data, seed))
    return {
        "average_precision": precision,
        "seconds": time.perf_counter() - start,
        "n_train": len(wrong),
        "wrong_labels": float(wrong.mean()),
        "note": {},
    }


def cleanlab_knn(data: Noisy, seed: int) -> np.ndarray:
    """Give the suspicion of cleanlab's Datalab from features alone: its own k-NN probabilities."""
    from cleanlab import Datalab

    model = AttnKNNClassifier(
        estimator=None,
        cv=3,
        settings={"embedder": "identity", "head": {"epochs": 1}},
        random_state=seed,
    ).fit(data.X, data.given)
    features = model.memory_.keys["features"].numpy()
    lab = Datalab({"y": data.given}, label_name="y", verbosity=0)
    lab.find_issues(features=features, issue_types={"label": {}})
    return 1 - lab.get_issues("label")["label_score"].to_numpy()


def methods_of(task: str, options: argparse.Namespace) -> list[str]:
    """Give the methods that a task compares."""
    if task in ISSUES:
        return ["attention", "cleanlab-knn"]
    return [m for m in options.methods if not (TASKS[task].views and m in PEERS)]


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means with intervals, and each bar with what is missing to it."""
    tasks: dict[str, Any] = {}
    for task in [t for t in (*TASKS, *ISSUES) if any(r["task"] == t for r in rows)]:
        mine = [row for row in rows if row["task"] == task]
        means: dict[str, Any] = {}
        for method in dict.fromkeys(row["method"] for row in mine):
            own = [row for row in mine if row["method"] == method]
            found = {}
            for key in (*KEYS, "average_precision", "seconds"):
                values = [row[key] for row in own if key in row]
                if values:
                    found[key] = interval(values)
            means[method] = found | {"seeds": sorted(row["seed"] for row in own)}
        whole = all(row["rows"] is None for row in mine)  # the bars are not for a cut
        tasks[task] = {"means": means, "bars": judge(task, means) if whole else {}}
    return conditions() | {"tasks": tasks, "rows": rows}


def judge(task: str, means: dict[str, Any]) -> dict[str, Any]:
    """Compare the classifier's means with the bars."""
    ours = means.get("attention")
    if ours is None:
        return {}
    if task in ISSUES:
        theirs = means.get("cleanlab-knn")
        if theirs is None:
            return {}
        gap = theirs["average_precision"]["mean"] - ours["average_precision"]["mean"]
        return {"average_precision": {"wanted": "above cleanlab's", "missed_by": max(0.0, gap)}}
    bars = {}
    for key, wanted in zip(KEYS[:3], TASKS[task].bars, strict=True):
        if wanted is not None:
            reached = ours[key]["mean"]
            gap = wanted - reached if key == "accuracy" else reached - wanted
            bars[key] = {"wanted": wanted, "reached": reached, "missed_by": max(0.0, gap)}
    return bars


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    every = [*TASKS, *ISSUES]
    parser = options_of(
        __doc__, tasks=",".join(every), methods=",".join(METHODS), seeds="0,1,2", data_root=None,
        out=Path("runs/label_noise"), results=RESULTS, judge_only=False,
    )  # fmt: skip
    parser.add_argument("--rows", type=int, help="at most so many training rows, for a first look")
    options = parser.parse_args(arguments)
    options.tasks, options.methods = listed(options.tasks), listed(options.methods)
    options.seeds = listed(options.seeds, int)
    if unknown := [t for t in options.tasks if t not in every]:
        parser.error(f"unknown task {', '.join(unknown)}; known: {', '.join(every)}")
    if unknown := [m for m in options.methods if m not in METHODS]:
        parser.error(f"unknown method {', '.join(unknown)}; known: {', '.join(METHODS)}")
    return options


def main(arguments: list[str]) -> None:
    """Run what is missing, judge, write."""
    options = parse(arguments)
    for task in [] if options.judge_only else options.tasks:
        for seed in options.seeds:
            for method in methods_of(task, options):
                cut = f"-{options.rows}" if options.rows else ""
                path = options.out / f"{task}-{method}-{seed}{cut}.json"
                if path.exists():
                    continue
                work = run_issues if task in ISSUES else run
                row = {"task": task, "method": method, "seed": seed, "rows": options.rows}
                row |= work(task, method, seed, options) | {"command": conditions()["command"]}
                keep(row, path)
                shown = {k: round(row[k], 4) for k in (*KEYS, "average_precision") if k in row}
                print(task, method, seed, shown, f"{row['seconds']:.0f} s", flush=True)
    rows = [read(path) for path in sorted(options.out.glob("*.json"))]
    rows = [row for row in rows if row["rows"] == options.rows]
    summary = summarize(rows)
    name = "_".join(str(part) for part in ("label_noise", options.rows) if part)
    keep(summary, options.results / f"{name}.json")
    for task, found in summary["tasks"].items():
        print(task, json.dumps(found["bars"]))


if __name__ == "__main__":
    main(sys.argv[1:])
