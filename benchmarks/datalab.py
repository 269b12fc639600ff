"""`review` beside cleanlab's Datalab: planted wrong labels, near copies and rows unlike all others.

Question: which of the two finds more of what is wrong, and raises fewer false alarms?

    python benchmarks/datalab.py
    python benchmarks/datalab.py --datasets digits --seeds 101

Some rows of each data set; a tenth of the labels are replaced at random, 2 % of the rows are copied
with a ten-thousandth of the columns' spread as noise, and 2 % have every value drawn anew from its
column, so that no single value is odd, but the row is. Datalab gets the same model's leave-one-out
predictions and keys. Writes benchmarks/results/datalab.json and RESULTS.md.
"""

import argparse
import contextlib
import io
import json
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from nearwise_lab.cli.settings_text import parse_seeds
from nearwise_lab.data import load_dataset
from results_page import write_page
from sklearn.metrics import roc_auc_score

from nearwise import AttnKNNClassifier, review
from nearwise.conditions import hardware, versions
from nearwise.memory import make_index

HERE = Path(__file__).parent
DATASETS = "digits,letter,magic04,cifar10-features"
N_ROWS = 2_000
WRONG, COPIED, ODD = 0.1, 0.02, 0.02


def planted(name: str, seed: int, data_root: str | None) -> dict[str, Any]:
    """Rows and labels with what is wrong among them, as masks."""
    data, rng = load_dataset(name, data_root=data_root), np.random.default_rng(seed)
    chosen = rng.permutation(len(data.X))[:N_ROWS]
    X, y = np.asarray(data.X, dtype=np.float64)[chosen], np.unique(data.y, return_inverse=True)[1]
    y = y[chosen]
    n_copied, n_odd = int(COPIED * len(X)), int(ODD * len(X))
    copied = rng.choice(len(X), n_copied, replace=False)
    near = X[copied] + 1e-4 * X.std(axis=0) * rng.normal(size=(n_copied, X.shape[1]))
    odd = np.stack([rng.choice(column, n_odd) for column in X.T], axis=1)
    everyone = np.concatenate([X, near, odd])
    labels = np.concatenate([y, y[copied], rng.choice(y, n_odd)])
    is_copy, is_odd = np.zeros(len(everyone), bool), np.zeros(len(everyone), bool)
    is_copy[copied] = is_copy[len(X) : len(X) + n_copied] = True
    is_odd[len(X) + n_copied :] = True
    is_wrong = ~is_odd & (rng.random(len(everyone)) < WRONG)
    others = (labels + rng.integers(1, labels.max() + 1, len(labels))) % (labels.max() + 1)
    labels = np.where(is_wrong, others, labels)
    return {"X": everyone, "y": labels, "label": is_wrong, "copy": is_copy, "outlier": is_odd}


def by_review(model: AttnKNNClassifier) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Rows that `review` lists, and a score of every row, larger for worse, by kind."""
    found, n_rows = review(model).findings(), model.fitted_.n_remembered
    scores = {kind: np.zeros(n_rows) for kind in ("label", "copy", "outlier")}
    for kind, score in scores.items():
        of_kind = found[found["kind"] == kind]
        score[of_kind["id"].astype(int)] = of_kind["score"]
    scores["label"] = review(model).issues().set_index("id")["suspicion"].sort_index().to_numpy()
    keys, ids = model.memory_.keys["features"], model.memory_.ids
    near = make_index("exact", "cosine" if keys.shape[1] > 8 else "euclidean").fit(keys, ids)
    scores["outlier"] = near.search(keys, 10, ids).distances.mean(1).numpy()
    listed = {
        kind: np.isin(np.arange(n_rows), found[found["kind"] == kind]["id"].astype(int))
        for kind in scores
    }
    return {kind: (listed[kind], scores[kind]) for kind in scores}


def by_datalab(model: AttnKNNClassifier, y: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Give the same by cleanlab's Datalab, from the model's predictions and keys."""
    from cleanlab import Datalab

    lab = Datalab({"y": y}, label_name="y", verbosity=0)
    with contextlib.redirect_stdout(io.StringIO()):
        lab.find_issues(
            pred_probs=model.predict_proba(),
            features=model.memory_.keys["features"].numpy(),
            issue_types={"label": {}, "outlier": {}, "near_duplicate": {}},
        )
    issues = lab.get_issues()
    names = {"label": "label", "copy": "near_duplicate", "outlier": "outlier"}
    return {
        kind: (
            issues[f"is_{name}_issue"].to_numpy(),
            1.0 - issues[f"{name}_score"].to_numpy(),
        )
        for kind, name in names.items()
    }


def measured(name: str, seed: int, data_root: str | None) -> list[dict[str, Any]]:
    """Precision and recall of what each lists, and AUROC of its scores."""
    truth = planted(name, seed, data_root)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AttnKNNClassifier(preset="instant", random_state=seed).fit(truth["X"], truth["y"])
        found = {"review": by_review(model), "Datalab": by_datalab(model, truth["y"])}
    rows = []
    for kind in ("label", "copy", "outlier"):
        for method, of_kind in found.items():
            listed, scores = of_kind[kind]
            hits = int((listed & truth[kind]).sum())
            rows.append(
                {
                    "data": name,
                    "seed": seed,
                    "kind": kind,
                    "method": method,
                    "listed": int(listed.sum()),
                    "precision": hits / max(1, int(listed.sum())),
                    "recall": hits / int(truth[kind].sum()),
                    "auroc": float(roc_auc_score(truth[kind], scores)),
                }
            )
    return rows


def main(arguments: list[str]) -> None:
    """Measure every data set and seed, and write means over seeds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--datasets", default=DATASETS)
    parser.add_argument("--seeds", type=parse_seeds, default=parse_seeds("101-103"))
    parser.add_argument("--data-root", help="default: NEARWISE_DATA")
    options = parser.parse_args(arguments)
    runs: list[dict[str, Any]] = []
    for name in options.datasets.split(","):
        for seed in options.seeds:
            runs += measured(name, seed, options.data_root)
            print(json.dumps(runs[-6:]), flush=True)
    results = []
    for key in dict.fromkeys((run["data"], run["kind"], run["method"]) for run in runs):
        mine = [run for run in runs if (run["data"], run["kind"], run["method"]) == key]
        means = {
            name: round(float(np.mean([run[name] for run in mine])), 4)
            for name in ("listed", "precision", "recall", "auroc")
        }
        results.append(dict(zip(("data", "kind", "method"), key, strict=True)) | means)
    content = {
        "command": shlex.join(["python", "benchmarks/datalab.py", *arguments]),
        "hardware": hardware(),
        "versions": versions(),
        "runs": runs,
        "results": results,
    }
    path = HERE / "results" / "datalab.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(write_page(path.parent, HERE / "RESULTS.md"))


if __name__ == "__main__":
    main(sys.argv[1:])
