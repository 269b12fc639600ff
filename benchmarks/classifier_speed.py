"""The whole classifier's speed: predictions against scikit-learn's brute force, and fits of Adult.

Claims: `AttnKNNClassifier.predict_proba` of 10,000 queries over 50,000 x 64 rows, attention
included, takes no longer than ``KNeighborsClassifier(algorithm="brute").predict_proba``; a fit of
Adult (39,000 rows) stays under 60 s with ``preset="instant"`` and under 5 minutes in the default.

    python benchmarks/classifier_speed.py --data-root DATA
"""

import json
import resource
import time
from typing import Any

import torch
from keeping import RESULTS, conditions, keep, options_of
from nearwise_lab.data import load_dataset
from search_speed import circumstances, paired
from sklearn.neighbors import KNeighborsClassifier

from nearwise.classifier import AttnKNNClassifier
from nearwise.data import split_dataset
from nearwise.metrics import nll

SEED = 0


def predictions(repeats: int) -> dict:
    """Class probabilities of 10,000 queries over 50,000 x 64, ours against brute force."""
    generator = torch.Generator().manual_seed(SEED)
    rows = torch.randn(50_000, 64, generator=generator).numpy()
    query = torch.randn(10_000, 64, generator=generator).numpy()
    labels = (rows[:, 0] > 0).astype(int) + (rows[:, 1] > 0)
    ours = AttnKNNClassifier(
        16,
        estimator=None,
        random_state=SEED,
        settings={"embedder": "identity", "head": {"epochs": 3}},
    ).fit(rows, labels)
    peer = KNeighborsClassifier(16, algorithm="brute").fit(rows, labels)
    result = paired(lambda: ours.predict_proba(query), lambda: peer.predict_proba(query), repeats)
    task = "predict_proba of 10,000 queries over 50,000 x 64, k = 16, attention included"
    return {"task": task, "against": "KNeighborsClassifier(algorithm='brute')"} | result


def adult_fits(data_root: str | None) -> list[dict]:
    """Wall seconds of a fit in each preset, and what it reached."""
    dataset = load_dataset("adult", data_root=data_root)
    train, test = split_dataset(dataset, SEED)
    X: Any = dataset.X
    results = []
    presets: list[tuple[Any, int]] = [("instant", 60), ("default", 300)]
    for preset, most in presets:
        start = time.perf_counter()
        model = AttnKNNClassifier(preset=preset, random_state=SEED)
        model.fit(X.iloc[train], dataset.y[train])
        seconds = time.perf_counter() - start
        codes = (dataset.y[test] == model.classes_[1]).astype(int)
        results.append(
            {
                "task": f"fit of adult, {len(train)} rows, preset={preset!r}",
                "seconds": round(seconds, 1),
                "bar_seconds": most,
                "nll": round(nll(codes, model.predict_proba(X.iloc[test])), 4),
                "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            }
        )
    return results


def main() -> None:
    """Measure, print and write."""
    out = RESULTS / "classifier_speed.json"
    options = options_of(__doc__, repeats=5, data_root=None, out=out).parse_args()
    results = [predictions(options.repeats), *adult_fits(options.data_root)]
    keep(conditions() | circumstances() | {"seed": SEED, "results": results}, options.out)
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
