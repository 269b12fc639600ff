"""Abstention and prediction sets of the default: do the promises hold?

Claims: sets of confidence 90 % hold the true class of 90 % of new rows, to within .01 on average
over random splits; the share of wrong answers lies under its 95 % bound in 95 % of splits.

    python benchmarks/trust.py --data-root DATA
    python benchmarks/trust.py --datasets digits --seeds 0-4

30 % of the rows are the test part, stratified; adult is a random 4,000 rows. Splits that the JSON
file holds already are kept.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from keeping import RESULTS, interval, keep_runs, listed, options_of, take
from nearwise_lab.cli.settings_text import parse_seeds
from nearwise_lab.data import load_dataset
from sklearn.model_selection import train_test_split

from nearwise import AttnKNNClassifier
from nearwise.metrics import aurc, evaluate_sets

CONFIDENCE, COVERAGE, RISK = 0.9, 0.9, 0.05
SETS: dict[str, dict[str, Any]] = {
    "LAC": {},
    "LAC by class": {"class_conditional": True},
    "APS": {"method": "aps"},
    "APS, drawn": {"method": "aps", "seed": 0},
    "RAPS, drawn": {"method": "raps", "seed": 0},
}
WISHES: dict[str, dict[str, Any]] = {
    "coverage .9": {"coverage": COVERAGE},
    "risk .05": {"max_risk": RISK},
}


def rows_of(name: str, root: str | None) -> tuple[Any, np.ndarray]:
    """Rows and labels; of adult a random 4,000."""
    data = load_dataset(name, data_root=root)
    if name == "adult":
        return data.rows(np.random.default_rng(0).choice(len(data), 4000, replace=False))
    return data.X, np.asarray(data.y)


def measure(root: str | None, dataset: str, seed: int) -> dict[str, Any]:
    """Fit on one split and measure every promise on its test part."""
    X, y = rows_of(dataset, root)
    train, test = train_test_split(np.arange(len(y)), test_size=0.3, stratify=y, random_state=seed)
    model = AttnKNNClassifier(random_state=seed).fit(take(X, train), y[train])
    rows, codes = take(X, test), np.searchsorted(model.classes_, y[test])
    proba = model.predict_proba(rows)
    sets = {
        name: evaluate_sets(codes, model.predict_set(rows, CONFIDENCE, **options), CONFIDENCE)
        for name, options in SETS.items()
    }
    answers = {
        name: answered(partial(model.predict_selective, rows, **wish), y[test])
        for name, wish in WISHES.items()
    }
    return {
        "n_test": len(test),
        "accuracy": float((proba.argmax(1) == codes).mean()),
        "aurc": aurc(codes, proba),
        "sets": sets,
        "answers": answers,
    }


def answered(choose: Callable[[], Any], labels: np.ndarray) -> dict[str, Any]:
    """Give what was promised and what came, or why it cannot be promised."""
    try:
        chosen = choose()
    except ValueError as error:
        return {"refused": str(error)}
    wrong = (chosen.labels != labels)[chosen.accepted]
    return {
        "answered": float(chosen.accepted.mean()),
        "risk": float(wrong.mean()) if len(wrong) else 0.0,
        "expected": chosen.expected_risk,
        "bound": chosen.risk_bound,
    }


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a data set and promise: means over splits with 95 % t-intervals."""
    rows = []
    for dataset in dict.fromkeys(r["dataset"] for r in runs):
        of = [r for r in runs if r["dataset"] == dataset]
        for name in SETS:
            found = [r["sets"][name] for r in of]
            row = {"dataset": dataset, "promise": f"sets, {name}", "splits": len(of)}
            keys = ("coverage", "mean_size", "empty", "class_gap")
            rows.append(row | {key: interval([one[key] for one in found], 4) for key in keys})
        for name in WISHES:
            found = [a for r in of if "risk" in (a := r["answers"][name])]
            row = {"dataset": dataset, "promise": name, "splits": len(found)}
            if found:
                keys = ("answered", "risk", "expected", "bound")
                row |= {key: interval([one[key] for one in found], 4) for key in keys}
                row["above the bound"] = sum(one["risk"] > one["bound"] for one in found)
            rows.append(row)
    return rows


def main() -> None:
    """Run what is missing and keep every split."""
    parser = options_of(
        __doc__, datasets="breast_cancer,wine-red,digits,adult", seeds="0-9", data_root=None,
        out=RESULTS / "trust.json",
    )  # fmt: skip
    options = parser.parse_args()
    names, seeds = listed(options.datasets), parse_seeds(options.seeds)
    wanted = [{"dataset": name, "seed": seed} for name in names for seed in seeds]
    keep_runs(wanted, partial(measure, options.data_root), summary, options.out)


if __name__ == "__main__":
    main()
