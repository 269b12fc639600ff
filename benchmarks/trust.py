"""Abstention and prediction sets: do the promises hold, and which score orders rows best.

Claims: sets of confidence 90 % hold the true class of 90 % of test rows, within .01 on average over
20 random splits; the score that the classifier chooses has an AURC no higher than that of the
maximum probability; the share of wrong answers lies under its 95 % bound in 95 % of splits.

    python benchmarks/trust.py --data-root DATA
    python benchmarks/trust.py --datasets digits --seeds 0-4 --fits held-out

Two cheap fits per split (30 % of rows are the test part, stratified), both without base and trained
space: "cross-fitted" has cv=3 (3 folds, the pretrained head trained further for up to 8
epochs), "held-out" trains heads of its own for 8 epochs on 20 % of the training rows, which judge
it too. adult is a random 4,000 rows. Rows are kept in runs/trust as they
finish; run again, it goes on. Writes benchmarks/results/trust.json, keeping its other data sets.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from nearwise_lab.cli.settings_text import parse_seeds
from nearwise_lab.data import load_dataset
from nearwise_lab.results.measures import mean_with_interval
from sklearn.model_selection import train_test_split

from nearwise import AttnKNNClassifier
from nearwise.cli.rows.parsing import split_list
from nearwise.conditions import command_line, hardware, versions
from nearwise.metrics import augrc, aurc, evaluate_sets
from nearwise.safe_files import plain, write_aside

HERE = Path(__file__).parent
CONFIDENCE, COVERAGE, RISK = 0.9, 0.9, 0.05
CHEAP: dict[str, Any] = {
    "estimator": None,
    "settings": {"embedder": "identity", "head": {"epochs": 8}},
}
FITS: dict[str, dict[str, Any]] = {
    "cross-fitted": {"cv": 3, **CHEAP},
    "held-out": {"cv": 0.2, **CHEAP},
}
SETS: dict[str, dict[str, Any]] = {
    "lac": {},
    "lac, class-conditional": {"class_conditional": True},
    "aps": {"method": "aps"},
    "aps, drawn": {"method": "aps"},  # with the split's seed, as raps
    "raps, drawn": {"method": "raps"},
}


def read(name: str, root: str | None) -> tuple[Any, np.ndarray]:
    """Rows and labels; of adult a random 4,000."""
    dataset = load_dataset(name, data_root=root)
    if name == "adult":
        return dataset.rows(np.random.default_rng(0).choice(len(dataset), 4000, replace=False))
    return dataset.X, np.asarray(dataset.y)


def run(X: Any, y: np.ndarray, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Fit on one split and measure every promise on its test part."""
    train, test = train_test_split(np.arange(len(y)), test_size=0.3, stratify=y, random_state=seed)
    take: Callable[[np.ndarray], Any] = X.iloc.__getitem__ if hasattr(X, "iloc") else X.__getitem__
    start = time.perf_counter()
    model = AttnKNNClassifier(random_state=seed, n_jobs=1, **settings).fit(take(train), y[train])
    seconds = time.perf_counter() - start
    codes, rows = np.searchsorted(model.classes_, y[test]), take(test)
    return {
        "fit_seconds": seconds,
        "n_train": len(train),
        "n_test": len(test),
        "accuracy": float((model.predict(rows) == y[test]).mean()),
        "sets": {
            name: measure_sets(
                model, rows, codes, options | ({"seed": seed} if "drawn" in name else {})
            )
            for name, options in SETS.items()
        },
        "abstention": measure_abstention(model, rows, codes),
    }


def measure_sets(
    model: AttnKNNClassifier, rows: Any, codes: np.ndarray, options: dict[str, Any]
) -> dict[str, Any]:
    """Coverage, sizes and gaps of one kind of sets, or why there are none."""
    try:
        return evaluate_sets(codes, model.predict_set(rows, CONFIDENCE, **options), CONFIDENCE)
    except ValueError as error:
        return {"refused": str(error)}


def measure_abstention(model: AttnKNNClassifier, rows: Any, codes: np.ndarray) -> dict[str, Any]:
    """AURC and AUGRC, and what a coverage and a risk asked for came to."""
    chosen, proba = model.predict_selective(rows, coverage=COVERAGE), model.predict_proba(rows)
    found: dict[str, Any] = {"aurc": aurc(codes, proba), "augrc": augrc(codes, proba)}
    found["at_coverage"] = outcome(chosen, model, codes)
    try:
        limited = model.predict_selective(rows, max_risk=RISK)
        found["at_risk"] = outcome(limited, model, codes)
    except ValueError as error:
        found["at_risk"] = {"refused": str(error)}
    return found


def outcome(chosen: Any, model: AttnKNNClassifier, codes: np.ndarray) -> dict[str, Any]:
    """What was promised beside what came."""
    wrong = (chosen.labels != model.classes_[codes])[chosen.accepted]
    return {
        "coverage": float(chosen.accepted.mean()),
        "risk": float(wrong.mean()) if len(wrong) else None,
        "expected_risk": chosen.expected_risk,
        "risk_bound": chosen.risk_bound,
    }


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over splits with 95 % intervals."""
    sets = {
        name: {
            key: interval([row["sets"][name][key] for row in rows if key in row["sets"][name]])
            for key in ("coverage", "mean_size", "empty", "class_gap", "lowest_class_coverage")
        }
        | {"refused": sum("refused" in row["sets"][name] for row in rows)}
        for name in SETS
    }
    told = [row["abstention"] for row in rows]
    return {
        "splits": len(rows),
        "accuracy": interval([row["accuracy"] for row in rows]),
        "sets": sets,
        "aurc_x1000": interval([1000 * one["aurc"] for one in told]),
        "augrc_x1000": interval([1000 * one["augrc"] for one in told]),
        "at_coverage": kept([one["at_coverage"] for one in told]),
        "at_risk": kept([one["at_risk"] for one in told]),
    }


def kept(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """Means of what was promised and what came, and how often the bound was broken."""
    there = [one for one in outcomes if one.get("risk") is not None]
    means = {
        key: interval([one[key] for one in there])
        for key in ("coverage", "risk", "expected_risk", "risk_bound")
    }
    broken = sum(one["risk"] > one["risk_bound"] for one in there)
    return means | {"splits": len(there), "test_risk_above_bound": broken}


def interval(values: list[float]) -> dict[str, Any] | None:
    """Mean, ends of its 95 % interval over splits, and their number."""
    if not values:
        return None
    mean = mean_with_interval(values)
    return {"mean": mean.mean, "low": mean.low, "high": mean.high, "n": len(values)}


def main() -> None:
    """Run what is missing and write the summary."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-root", help="where data sets lie; default NEARWISE_DATA")
    parser.add_argument("--datasets", default="breast_cancer,wine-red,digits,adult")
    parser.add_argument("--seeds", default="0-19", help="splits, such as 0-4 or 0,2")
    parser.add_argument("--fits", default=",".join(FITS), help="cross-fitted, held-out, or both")
    parser.add_argument("--runs", type=Path, default=Path("runs/trust"))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "trust.json")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    options.runs.mkdir(parents=True, exist_ok=True)
    told = json.loads(options.out.read_text()) if options.out.exists() else {}
    summary: dict[str, Any] = told.get("results", {})
    for name in split_list(options.datasets):
        X, y = read(name, options.data_root)
        for fit in split_list(options.fits):
            rows = []
            for seed in parse_seeds(options.seeds):
                place = options.runs / f"{name}-{fit}-{seed}.json"
                if not place.exists():
                    text = json.dumps(plain(run(X, y, FITS[fit], seed)))
                    write_aside(place, text.encode())
                rows.append(json.loads(place.read_text()))
            summary.setdefault(name, {})[fit] = found = {
                "command": f"python benchmarks/{command_line()}",
                **summarize(rows),
            }
            coverage = found["sets"]["lac"]["coverage"]
            save(summary, options.out)
            print(f"{name} {fit}: {len(rows)} splits, coverage {coverage['mean']:.4f}", flush=True)


def save(summary: dict[str, Any], out: Path) -> None:
    """Write what there is so far, with its conditions."""
    told = {
        "hardware": hardware(),
        "versions": versions(),
        "asked": {"confidence": CONFIDENCE, "coverage": COVERAGE, "max_risk": RISK},
        "fits": FITS,
        "results": summary,
    }
    write_aside(out, f"{json.dumps(plain(told), indent=1)}\n".encode())


if __name__ == "__main__":
    main()
