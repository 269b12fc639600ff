"""How a probe should choose k: accuracy and NLL of uniform k-NN by the measure that k is chosen by.

    python benchmarks/probe_neighbors.py

Each seed splits a set anew: training rows vote, validation rows choose k among the probe's own
sizes, test rows judge. Pixels, mean patches and an untrained neural field of the digits, from all
pixels and from a fifth of them, and (unless left out by --no-cifar) ready features of CIFAR-10.
`KNNProbe(n_neighbors="val")` chooses by Brier score. Half a minute.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from nearwise_lab.data import load_dataset, load_images
from nearwise_lab.nn.field import make_perceiver
from nearwise_lab.probing import Patches, RandomInit
from nearwise_lab.probing.data import probe_data

from nearwise.conditions import command_line, hardware, versions
from nearwise.metrics import accuracy, brier, nll
from nearwise.probes import KNNProbe, extract_features
from nearwise.probes.knn import SIZES

CONTEXTS = ("full", "0.2:fixed", "0.2")
ENCODERS: dict[str, tuple[Any, Any]] = {
    "pixels": (Patches(2, (8, 8), 1), "flatten"),
    "mean patch": (Patches(4, (8, 8), 1), "mean"),
    "untrained field": (RandomInit(lambda: make_perceiver("digits")), "mean"),
}
Parts = list[tuple[np.ndarray, np.ndarray]]
CHOICES = {
    "NLL": lambda y, proba, k: nll(y, proba),
    "Brier score": lambda y, proba, k: brier(y, proba),
    "accuracy": lambda y, proba, k: 1 - accuracy(y, proba),
    "always 20": lambda y, proba, k: abs(k - 20),
}


def digits(seed: int) -> Iterator[tuple[str, Parts]]:
    """Features of the digits by every encoder in every context."""
    data = probe_data(load_images("digits-images"), seed=seed, validation=0.1)
    for name, (encoder, pool) in ENCODERS.items():
        for context in CONTEXTS:
            found = [
                extract_features(
                    encoder, part.images, part.labels, rows=part.rows, pool=pool, context=context
                )
                for part in data
            ]
            yield f"digits, {name}, {context}", [(f.X, np.asarray(f.y)) for f in found]


def cifar(seed: int, root: Path | None) -> Iterator[tuple[str, Parts]]:
    """Ready features of CIFAR-10 images: 9,900 rows to vote, 1,100 to choose, 3,000 to judge."""
    dataset = load_dataset("cifar10-features", data_root=root)
    rows = np.random.default_rng(seed).permutation(len(dataset.y))[:14_000]
    parts = [dataset.rows(part) for part in np.split(rows, [9_900, 11_000])]
    yield "cifar10-features", [(np.asarray(X, np.float32), np.asarray(y)) for X, y in parts]


def judged(parts: Parts) -> dict[str, dict[str, float]]:
    """What each way of choosing k comes to on the test rows."""
    (X, y), (X_held, y_held), (X_test, y_test) = parts
    classes = np.unique(y)
    held, test = (np.searchsorted(classes, labels) for labels in (y_held, y_test))
    asked = {k: KNNProbe(k).fit(X, y) for k in SIZES}
    on_held = {k: probe.predict_proba(X_held) for k, probe in asked.items()}
    on_test = {k: probe.predict_proba(X_test) for k, probe in asked.items()}
    found = {}
    for name, cost in CHOICES.items():
        k = min(SIZES, key=lambda k: cost(held, on_held[k], k))
        found[name] = {
            "k": k,
            "accuracy": float(accuracy(test, on_test[k])),
            "nll": float(nll(test, on_test[k])),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--no-cifar", action="store_true", help="only what ships with scikit-learn")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "probe_neighbors.json"
    )
    args = parser.parse_args()
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for seed in range(args.seeds):
        sets = list(digits(seed)) + ([] if args.no_cifar else list(cifar(seed, args.data_root)))
        for features, parts in sets:
            for choice, found in judged(parts).items():
                runs.setdefault((features, choice), []).append(found)
        print(f"seed {seed} is done", flush=True)
    table = []
    for (features, choice), several in runs.items():
        row: dict[str, Any] = {"features": features, "k by": choice}
        for key in ("accuracy", "nll", "k"):
            values = np.array([one[key] for one in several], dtype=float)
            row |= {key: values.mean(), f"{key}_sd": values.std(ddof=1) if args.seeds > 1 else 0.0}
        table.append(row)
        print(f"{features:32} {choice:12} accuracy {row['accuracy']:.3f} NLL {row['nll']:.3f} "
              f"k {row['k']:.0f}")  # fmt: skip
    content = {
        "command": command_line(),
        "versions": versions(),
        "hardware": hardware(),
        "note": f"mean and standard deviation over {args.seeds} seeds, each a split of its own",
        "results": table,
    }
    args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
