"""What each option of the attention head is worth: one row per option, switched on alone.

The reference is the head that is trained from scratch on rows held out once, a fifth of the
training part, with log-linear pooling beside the head of one "deep" network, on the feature space
and the network's. (A cross-fit takes the pretrained head, which has none of these options.) Every
row changes one thing and is fitted and calibrated like the reference; differences of NLL and ECE on
the test part are paired by seed, positive where the change hurts. Options from the soft calibration
error on are variants of the head that live in the lab (`nearwise.lab.nn.head_variants`), since none
of them showed a gain.

    python benchmarks/ablation_attention.py --data-root DATA
    python benchmarks/ablation_attention.py --datasets ionosphere --seeds 0 --rows "reference,null: none"

Rows that the JSON file holds already are kept; delete it to begin again.
"""  # noqa: E501

import argparse
import json
import shlex
import time
from pathlib import Path
from typing import Any

import numpy as np

from nearwise.classifier import AttnKNNClassifier
from nearwise.conditions import hardware, versions
from nearwise.data import split_dataset
from nearwise.lab.data import load_dataset
from nearwise.lab.nn import VariantConfig
from nearwise.lab.results.measures import mean_with_interval
from nearwise.metrics import evaluate_probabilities
from nearwise.safe_files import write_aside

HERE = Path(__file__).parent
REFERENCE = "reference"
SIZES = (5, 10, 20)


def variant(**options: Any) -> dict[str, Any]:
    """Settings of a classifier with a variant of the head."""
    return {"head": VariantConfig(**options)}


OPTIONS: dict[str, dict[str, Any]] = {
    REFERENCE: {},
    "null: parametric": {"null": "parametric"},
    "null: none": {"null": None},
    "mixture (null: parametric)": {"pooling": "mixture"},
    "mixture (null: prior)": {"pooling": "mixture", "null": "prior"},
    "soft calibration error, weight 1": variant(ece_weight=1.0),
    "soft calibration error, weight .2": variant(ece_weight=0.2),
    "Brier, weight 1": variant(brier_weight=1.0),
    "learned temperature": variant(temperature=True),
    "clusters by label": variant(clusters="label"),
    "clusters by shells of ranks": variant(clusters="band"),
    "k-ensemble 5, 10, 20": variant(k_ensemble=SIZES),
    "k-ensemble with a temperature a size": variant(k_ensemble=SIZES, k_temperature=True),
}


def run(dataset: Any, seed: int, option: str) -> dict[str, Any]:
    """Fit once and score the test rows."""
    train, test = split_dataset(dataset, seed)
    X, y = dataset.rows(train)
    X_test, y_test = dataset.rows(test)
    model = AttnKNNClassifier(
        embedder="deep",
        cv=0.2,
        settings={"pooling": "log-linear"} | OPTIONS[option],
        random_state=seed,
    )
    start = time.perf_counter()
    model.fit(X, y)
    seconds = time.perf_counter() - start
    parts = model.predict_parts(X_test)
    truth = np.searchsorted(model.classes_, y_test)
    scores = evaluate_probabilities(truth, parts.proba)
    return {
        "dataset": dataset.name,
        "option": option,
        "seed": seed,
        **{key: round(scores[key], 5) for key in ("accuracy", "nll", "ece", "brier")},
        "neighbors_nll": round(evaluate_probabilities(truth, parts.neighbor_proba)["nll"], 5),
        "null_mass": round(float(parts.null_mass.mean()), 4),
        "seconds": round(seconds, 2),
    }


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a data set and option: means, and paired differences from the reference."""
    rows = []
    for dataset in dict.fromkeys(r["dataset"] for r in runs):
        of = {(r["option"], r["seed"]): r for r in runs if r["dataset"] == dataset}
        for option in [o for o in OPTIONS if any(o == other for other, _ in of)]:
            seeds = sorted(s for o, s in of if o == option and (REFERENCE, s) in of)
            row: dict[str, Any] = {"dataset": dataset, "option": option, "seeds": len(seeds)}
            for key in ("accuracy", "nll", "ece", "null_mass", "seconds"):
                row[key] = float(np.mean([of[option, s][key] for s in seeds]))
            for key in ("nll", "ece") if option != REFERENCE else ():
                change = [of[option, s][key] - of[REFERENCE, s][key] for s in seeds]
                spread = mean_with_interval(change)
                row[f"{key}_change"] = {"mean": spread.mean, "low": spread.low, "high": spread.high}
            rows.append(row)
    return rows


def main() -> None:
    """Run what is missing and keep every row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--datasets", default="ionosphere,wine-red-dd,digits")
    parser.add_argument("--seeds", default="0,1,2", help="comma-separated")
    parser.add_argument("--rows", help="comma-separated names, or parts of them; default: all")
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "ablation_attention.json")
    options = parser.parse_args()
    # Names hold commas: known ones are looked for in the text instead of split.
    wanted = [o for o in OPTIONS if options.rows is None or o == REFERENCE or o in options.rows]
    command = ["python", "benchmarks/ablation_attention.py"]
    for name in ("datasets", "seeds", "rows"):
        if getattr(options, name) != parser.get_default(name):
            command += [f"--{name}", getattr(options, name)]
    runs = json.loads(options.out.read_text())["runs"] if options.out.exists() else []
    for name in options.datasets.split(","):
        dataset = load_dataset(name, data_root=options.data_root)
        for seed in map(int, options.seeds.split(",")):
            for option in wanted:
                done = {(r["dataset"], r["option"], r["seed"]) for r in runs}
                if (dataset.name, option, seed) in done:
                    continue
                runs.append(run(dataset, seed, option))
                print(*runs[-1].values(), flush=True)
                content = {
                    "command": shlex.join(command),
                    "hardware": hardware(),
                    "versions": versions(),
                    "results": summary(runs),
                    "runs": runs,
                }
                write_aside(options.out, (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
