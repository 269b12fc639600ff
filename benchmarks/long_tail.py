"""Long tail: training classes that fall to a hundredth, judged on a test part that is balanced.

Claims: asked for uniform class shares (`class_prior="uniform"`), the attention classifier reaches
a higher accuracy and lower NLL and ECE than itself with the training shares, and than uniform
k-NN, logistic regression and an MLP, which get the same correction (log p + log of wanted over
training share, after their own temperature where they have one). Images: study.py.

    python benchmarks/long_tail.py --data-root DATA
    python benchmarks/long_tail.py --dataset digits --seeds 0 --methods "logistic,attention"

Methods: knn-uniform, logistic, mlp (each recorded with "+prior" as well, from one fit), and
attention with "+prior" for uniform shares, "+prior+per-class" (per-class
calibration), "+prior+cap" (at most as many remembered rows of a class as of the median class).
Rows that the JSON file holds already are kept.
"""

import time
from itertools import product
from typing import Any

import numpy as np
from keeping import RESULTS, conditions, keep, listed, options_of, read, take
from nearwise_lab.corrupt import long_tail
from nearwise_lab.data import load_dataset
from nearwise_lab.experiments import get_method
from nearwise_lab.results.measures import mean_with_interval

from nearwise.data import split_dataset
from nearwise.estimators import AttnKNNClassifier
from nearwise.metrics import evaluate_probabilities
from nearwise.metrics.shots import shot_breakdown
from nearwise.safe_files import plain

RATIO = 0.01
BASELINES = ("knn-uniform", "logistic", "mlp")
DEFAULT = "knn-uniform,logistic,mlp,attention,attention+prior"
SHOWN = ("accuracy", "balanced", "nll", "ece", "many", "medium", "few", "fit_seconds")


def rows_of(dataset: Any, seed: int) -> dict[str, Any]:
    """Training rows with a long tail, and the whole test part."""
    train, test = split_dataset(dataset, seed)
    X, y = dataset.rows(train)
    # Two of each class: of a single row nothing can be left out.
    kept = long_tail(y, RATIO, seed, classes=dataset.classes, least=2)
    X_test, y_test = dataset.rows(test)
    return {
        "X": take(X, kept),
        "y": y[kept],
        "X_test": X_test,
        "y_test": np.searchsorted(dataset.classes, y_test),
        "counts": np.bincount(np.searchsorted(dataset.classes, y[kept])),
    }


def make_classifier(method: str, seed: int, counts: np.ndarray) -> AttnKNNClassifier:
    """The attention classifier with the parts that a method's name lists."""
    parts = method.split("+")[1:]
    settings: dict[str, Any] = {}
    if "per-class" in parts:
        settings["calibration"] = "per-class"
    if "cap" in parts:
        settings["max_per_class"] = max(2, int(np.median(counts)))
    return AttnKNNClassifier(
        class_prior="uniform" if "prior" in parts else "train", settings=settings, random_state=seed
    )


def corrected(proba: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """A baseline's probabilities for uniform class shares."""
    moved = proba * (counts.sum() + len(counts) / 2) / (counts + 0.5)
    return moved / moved.sum(axis=1, keepdims=True)


def run(dataset: Any, seed: int, method: str) -> list[dict[str, Any]]:
    """Fit once and measure on the balanced test part; halves of the classifier beside it."""
    data = rows_of(dataset, seed)
    name = method.split("+")[0]
    if name in BASELINES and name != method:
        raise ValueError(f"{method} is recorded with {name}: ask for {name}.")
    start = time.perf_counter()
    if name in BASELINES:  # one fit serves both class shares
        factory = get_method(name)
        model: Any = factory(seed, len(data["y"]), len(data["counts"]), dataset.kind)
        model.fit(data["X"], data["y"])
        seconds = time.perf_counter() - start
        proba = model.predict_proba(data["X_test"])
        found = {method: proba, f"{method}+prior": corrected(proba, data["counts"])}
        choice: dict[str, Any] = {}
    else:
        model = make_classifier(method, seed, data["counts"]).fit(data["X"], data["y"])
        seconds = time.perf_counter() - start
        parts = model.query(data["X_test"]).parts
        found = {
            f"{method}:base-alone": parts.base_proba,
            f"{method}:neighbors-alone": parts.neighbor_proba,
            method: parts.proba,
        }
        choice = {
            "classes": model.report_.choice.get("classes"),
            "null_mass": parts.null_mass.mean(),
        }
    return [
        plain(
            {
                "dataset": dataset.name,
                "method": part,
                "run": method,
                "seed": seed,
                "n_train": len(data["y"]),
                "n_test": len(data["y_test"]),
                "class_sizes": data["counts"],
                "fit_seconds": round(seconds, 1),
                **evaluate_probabilities(data["y_test"], proba),
                **shot_breakdown(data["y_test"], proba, data["counts"]),
                "choice": choice if part == method else {},
            }
        )
        for part, proba in found.items()
    ]


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a data set and method: means with 95 % t-intervals."""
    rows = []
    for dataset in dict.fromkeys(r["dataset"] for r in runs):
        of = [r for r in runs if r["dataset"] == dataset]
        for method in dict.fromkeys(r["method"] for r in of):
            mine = [r for r in of if r["method"] == method]
            row: dict[str, Any] = {"dataset": dataset, "method": method, "seeds": len(mine)}
            for key in SHOWN:
                values = [r[key] for r in mine if r[key] is not None]
                if values:
                    spread = mean_with_interval(values)
                    row[key] = {"mean": spread.mean, "half": spread.half}
            rows.append(row)
    return rows


def main() -> None:
    """Run what is missing and keep every row."""
    parser = options_of(
        __doc__, dataset="digits,cifar10-features", seeds="0,1,2", methods=DEFAULT, data_root=None,
        out=RESULTS / "long_tail.json",
    )  # fmt: skip
    options = parser.parse_args()
    content = read(options.out)
    runs, commands = content.get("runs", []), content.get("commands", [])
    for name, method, seed in product(
        listed(options.dataset), listed(options.methods), listed(options.seeds, int)
    ):
        dataset = load_dataset(name, data_root=options.data_root)
        if (dataset.name, method, seed) in {(r["dataset"], r["run"], r["seed"]) for r in runs}:
            continue
        rows = run(dataset, seed, method)
        runs += rows
        shown = {k: v if (v := rows[-1][k]) is None else round(v, 4) for k in SHOWN}
        print(dataset.name, method, seed, shown, flush=True)
        made = conditions()
        commands = list(dict.fromkeys([*commands, made.pop("command")]))
        found = {"ratio": RATIO, **made, "results": summary(runs), "runs": runs}
        keep({"commands": commands, **found}, options.out)


if __name__ == "__main__":
    main()
