"""Fits with one fold (images, views): the classifier of one checkout, to compare with another's.

Run it once per checkout, under a name for each; both are kept side by side:

    PYTHONPATH=FORMER/src python benchmarks/held_out_head.py --name before --data-root DATA
    python benchmarks/held_out_head.py --name after --data-root DATA
    python benchmarks/held_out_head.py --name after --sets digits-images --seeds 101
    python benchmarks/held_out_head.py --name after --sets cifar10 --seeds 101  # half an hour

Writes benchmarks/results/one_head.json: test NLL, ECE, AURC, accuracy and CPU seconds of the fit,
NLL and ECE after 30 % of the memory's labels were made wrong by `relabel`, and of the pairs the
mean difference of the losses with its 95 % interval; what it holds of other names, sets and seeds
stays.
"""

import argparse
import inspect
import json
import time
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from nearwise_lab.corrupt import label_noise
from nearwise_lab.data import load_dataset
from sklearn.datasets import load_digits

from nearwise import AttnKNNClassifier
from nearwise.conditions import hardware, versions
from nearwise.metrics import ece

OUT = Path(__file__).parent / "results" / "one_head.json"
USUAL = {"digits-images": 1000, "digits-shift": 1000, "mnist": 3000, "cifar10-features": 8000}
TRAINED = USUAL | {"cifar10": 50_000}
N_TEST = 2000
WRONG = 0.3  # of the memory's labels
SHARE = 0.15  # of the embeddings
FLOOR = 1e-7


def read(name: str, root: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, dict]:
    """Rows, labels, a second view and parameters."""
    if name.startswith("digits"):
        images, labels = load_digits(return_X_y=True)
        rows = (images * 15).astype(np.uint8).reshape(-1, 8, 8, 1)
        shifted = {"settings": {"tta": ("shift",)}}
        return rows, labels, None, shifted if name == "digits-shift" else {}
    flips = name == "cifar10-features"
    dataset = load_dataset(name, data_root=root, views=flips)
    second = dataset.views["flip"] if flips else None
    # What the share of rows that are held out once is called, before and after.
    names = inspect.signature(AttnKNNClassifier).parameters
    share = "cv" if "cv" in names else "validation_fraction"
    return np.asarray(dataset.X), dataset.y, second, {share: SHARE} if flips else {}


def measured(name: str, seed: int, root: str | None) -> dict[str, Any]:
    """Losses and confidences on new rows."""
    X, y, second, options = read(name, root)
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = order[: TRAINED[name]], order[TRAINED[name] :][:N_TEST]
    if name == "cifar10":  # its own split
        train, test = np.arange(50_000), np.arange(50_000, 60_000)
    views = [] if second is None else [second]
    start = time.process_time()
    model = AttnKNNClassifier(random_state=seed, **options)
    model.fit(X[train], y[train], views=[view[train] for view in views] or None)
    fit = time.process_time() - start
    truth = np.searchsorted(model.classes_, y[test])
    asked = X[test], [view[test] for view in views] or None
    proba = model.predict_proba(*asked)
    losses = losses_of(proba, truth)
    wrong = (proba.argmax(1) != truth)[np.argsort(-proba.max(1), kind="stable")]
    right = model.classes_[model.memory_.labels.numpy()]
    given = label_noise(right, WRONG, seed=1)
    model.relabel(model.memory_.ids.numpy()[given != right], given[given != right])
    misled = model.predict_proba(*asked)
    return {
        "nll": round(float(losses.mean()), 5),
        "ece": round(ece(truth, proba), 5),
        "aurc": round(float((np.cumsum(wrong) / np.arange(1, len(wrong) + 1)).mean()), 5),
        "accuracy": round(float(1 - wrong.mean()), 4),
        "fit_cpu_s": round(fit, 1),
        "nll, memory wrong": round(float(losses_of(misled, truth).mean()), 5),
        "ece, memory wrong": round(ece(truth, misled), 5),
        "losses": " ".join(f"{loss:.4f}" for loss in losses),  # of each row, in one line
    }


def losses_of(proba: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """NLL of each row."""
    nll: np.ndarray = -np.log(np.maximum(proba[np.arange(len(truth)), truth], FLOOR))
    return nll


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Mean change of the losses of the same rows, with half its 95 % interval."""
    gap = np.array(after["losses"].split(), float) - np.array(before["losses"].split(), float)
    half = 1.96 * gap.std(ddof=1) / len(gap) ** 0.5
    return {"nll": round(float(gap.mean()), 4), "half_interval": round(float(half), 4)}


def main() -> None:
    """Measure what is asked for, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", required=True, help="of this checkout: before, after, ...")
    parser.add_argument("--sets", default=",".join(USUAL))
    parser.add_argument("--seeds", default="101,102,103")
    parser.add_argument("--data-root", help="default: NEARWISE_DATA")
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    found = json.loads(OUT.read_text()) if OUT.exists() else {"results": {}}
    found |= {"command": "benchmarks/held_out_head.py", "hardware": hardware()}
    found["versions"] = versions()
    for name, seed in product(options.sets.split(","), options.seeds.split(",")):
        runs = found["results"].setdefault(f"{name}, seed {seed}", {})
        runs[options.name] = measured(name, int(seed), options.data_root)
        if "before" in runs and "after" in runs:
            runs["after - before"] = difference(runs["before"], runs["after"])
        OUT.write_text(json.dumps(found, indent=1) + "\n")
        shown = {key: value for key, value in runs[options.name].items() if key != "losses"}
        print(name, seed, options.name, shown, runs.get("after - before"), flush=True)


if __name__ == "__main__":
    main()
