"""Labels that have nothing to do with the rows: what `label_noise="auto"` makes of them.

Each draw has 300 training rows of 6 normal numbers and labels drawn evenly, and 2,000 fresh rows
whose labels are drawn likewise. Chance is the NLL of the training rows' class shares on the fresh
labels; nothing can be learned beyond it. Reported is the NLL above chance, in units of its
standard error over the fresh rows too, and the share of answers above .9.

    python benchmarks/pure_noise.py
    python benchmarks/pure_noise.py --classes 3 --bases none --seeds 0,1,2

One row for each draw is kept in runs/pure_noise as it finishes; run again, it goes on. Writes
benchmarks/results/pure_noise.json.
"""

import json
import sys
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from keeping import RESULTS, conditions, keep, listed, options_of, read

from nearwise.estimators import AttnKNNClassifier
from nearwise.safe_files import plain

N_TRAIN, N_FRESH, WIDTH = 300, 2000, 6


def draw(n_classes: int, base: str | None, seed: int, label_noise: Any) -> dict[str, Any]:
    """Fit one draw and compare its answers with chance."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(N_TRAIN, WIDTH)), rng.integers(0, n_classes, N_TRAIN)
    fresh, truth = rng.normal(size=(N_FRESH, WIDTH)), rng.integers(0, n_classes, N_FRESH)
    model = AttnKNNClassifier(
        estimator=base,
        cv=3,
        label_noise=label_noise,
        settings={"embedder": "identity"},
        random_state=seed,
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.fit(X, y)
    proba = model.predict_proba(fresh)
    shares = (np.bincount(y, minlength=n_classes) + 0.5) / (N_TRAIN + 0.5 * n_classes)
    chance = -np.log(shares[truth])
    losses = -np.log(proba[np.arange(N_FRESH), truth])
    above = losses - chance
    return {
        "nll": float(losses.mean()),
        "chance": float(chance.mean()),
        "above": float(above.mean()),
        "error": float(above.std() / N_FRESH**0.5),
        "sure": float((proba.max(axis=1) > 0.9).mean()),
        "warned": any("label_noise" in str(one.message) for one in said),
        "note": model.report_.choice.get("label_noise", {}),
    }


def summarize(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give the mean and the worst draw of every number of classes and base."""
    found = []
    for classes, base, noise in dict.fromkeys((r["classes"], r["base"], r["noise"]) for r in rows):
        own = [r for r in rows if (r["classes"], r["base"], r["noise"]) == (classes, base, noise)]
        above = np.array([row["above"] for row in own])
        found.append(
            {
                "classes": classes,
                "base": base,
                "noise": noise,
                "draws": len(own),
                "above_mean": float(above.mean()),
                "above_worst": float(above.max()),
                "beyond_two_errors": sum(r["above"] > 2 * r["error"] + 1e-3 for r in own),
                "sure_worst": max(row["sure"] for row in own),
                "warned": sum(row["warned"] for row in own),
            }
        )
    return found


def main(arguments: list[str]) -> list[dict[str, Any]]:
    """Run what is missing, summarize, write."""
    parser = options_of(
        __doc__, classes="2,3,10", bases="none,auto", noise="auto",
        seeds=",".join(map(str, range(20))), out=Path("runs/pure_noise"), results=RESULTS,
    )  # fmt: skip
    options = parser.parse_args(arguments)
    named: dict[str, Any] = {"auto": "auto", "none": None}
    noise = named[options.noise] if options.noise in named else float(options.noise)
    wanted = (listed(options.seeds, int), listed(options.bases), listed(options.classes, int))
    for seed, base, classes in product(*wanted):
        path = options.out / f"{options.noise}-{classes}-{base}-{seed}.json"
        if not path.exists():
            row = {"classes": classes, "base": base, "noise": options.noise, "seed": seed}
            keep(row | draw(classes, None if base == "none" else base, seed, noise), path)
    rows = [read(path) for path in sorted(options.out.glob("*.json"))]
    summary = summarize(rows)
    keep(conditions() | {"summary": summary, "rows": rows}, options.results / "pure_noise.json")
    for one in summary:
        print(json.dumps(plain(one)))
    return summary


if __name__ == "__main__":
    main(sys.argv[1:])
