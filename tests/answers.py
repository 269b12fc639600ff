"""Everything fourteen fits answer, to see that a change to the code changes no answer.

    python -m tests.answers record before.npz      # before the change
    python -m tests.answers compare before.npz     # after it, on the same machine

`compare` fits again, names every answer that is not equal bit for bit with its largest
difference, and fails if there is one. Bits differ between processors, so the file stays where it
was made. ``--cases table-default,images`` takes some of the fits.
"""

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_digits

from nearwise import AttnKNNClassifier, review
from tests.classifier.cases import attn_knn, blobs, table, wrong_labels
from tests.classifier.image_cases import QUICK as IMAGES
from tests.classifier.image_cases import patches

QUICK = {"head": {"epochs": 4}, "random_state": 0, "n_jobs": 1}
NEW = 24  # rows that are asked about
Answers = dict[str, np.ndarray]


def embeddings(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    rows = np.random.default_rng(seed).permutation(len(X))[:n]
    return X[rows].astype(np.float32), y[rows]


def noisy(X, y) -> tuple:
    """Give a fifth of the rows a wrong label."""
    return X, wrong_labels(y, 0.2, seed=1)


def fit(X, y, views=None, weight=None, **settings) -> tuple[AttnKNNClassifier, dict]:
    """Fit to all rows but the last ones, which are then asked about."""
    model = attn_knn(**{**QUICK, **settings})
    given = {} if views is None else {"views": [view[:-NEW] for view in views]}
    if weight is not None:
        given["sample_weight"] = weight[:-NEW]
    model.fit(X[:-NEW], y[:-NEW], **given)
    asked = {"X": X[-NEW:]}
    return model, asked if views is None else asked | {"views": [view[-NEW:] for view in views]}


def images(**settings) -> tuple[AttnKNNClassifier, dict]:
    X, y = patches(120 + NEW)
    return fit(X, y, **{**IMAGES, **settings})


def changed() -> tuple[AttnKNNClassifier, dict]:
    X, y = table(180)
    model, asked = fit(X.iloc[:-10], y[:-10], cv=3)
    ids = model.add(X.iloc[-10:], y[-10:])
    model.add(X.iloc[:1], ["perhaps"])
    model.remove(ids[:3])
    model.relabel(ids[4:6], ["yes", "no"])
    return model, asked


def stream() -> tuple[AttnKNNClassifier, dict]:
    X, y = blobs(360, 4, 5)
    model = attn_knn(**{**QUICK, "capacity": 150, "eviction": "age", "cv": 2})
    early = y[:120] < 3
    model.partial_fit(X[:120][early], y[:120][early])
    for start in range(120, 330, 70):
        model.partial_fit(X[start : start + 70], y[start : start + 70])
    return model, {"X": X[-NEW:]}


def views() -> tuple[AttnKNNClassifier, dict]:
    X, y = embeddings(300)
    other = X + np.random.default_rng(2).normal(size=X.shape).astype(np.float32)
    return fit(X, y, views=[other], cv=0.2, train={"epochs": 3})


def weighted() -> tuple[AttnKNNClassifier, dict]:
    X, y = blobs(200, 3, 6)
    weight = np.random.default_rng(3).uniform(0.2, 2, len(y))
    return fit(X, y, weight=weight, metric="cosine", max_per_class=30, estimator=None)


CASES: dict[str, Callable[[], tuple[AttnKNNClassifier, dict]]] = {
    "table-default": lambda: fit(*table(200)),
    "table-per-class": lambda: fit(*table(260, 1), cv=3, calibration="per-class"),
    "numbers-embedder": lambda: fit(*blobs(440, 3, 6), embedder="deep", train={"epochs": 3}, cv=2),
    "embeddings": lambda: fit(*embeddings(330), cv=3),
    "embeddings-held-out": lambda: fit(
        *embeddings(400), cv=0.2, embedder="deep", train={"epochs": 3}
    ),
    "views": views,
    "images": images,
    "images-flipped": lambda: images(tta=("flip",), class_prior="uniform"),
    "noise-given": lambda: fit(*noisy(*table(260, 2)), cv=3, label_noise=0.2),
    "noise-estimated": lambda: fit(*noisy(*blobs(300, 3, 5)), estimator=None, label_noise="auto"),
    "class-prior": lambda: fit(*table(220, 3), cv=3, class_prior=[0.3, 0.7]),
    "changed": changed,
    "stream": stream,
    "weighted": weighted,
}


def answers(model: AttnKNNClassifier, asked: dict) -> Answers:
    """Ask everything there is to ask; what a model refuses is an answer as well."""
    X, more = asked["X"], {name: value for name, value in asked.items() if name != "X"}
    found: Answers = {}

    def ask(name: str, call: Callable[[], dict | np.ndarray]) -> None:
        try:
            value = call()
        except ValueError as refusal:
            found[name] = np.array(f"refused: {type(refusal).__name__}")
            return
        parts = value if isinstance(value, dict) else {"": value}
        for part, array in parts.items():
            found[f"{name}.{part}".rstrip(".")] = np.asarray(array)

    ask("proba", lambda: model.predict_proba(X, **more))
    ask("left out", lambda: model.predict_proba(None))
    ask("parts", lambda: dict(model.query(X, **more).parts._asdict()))
    for method in ("lac", "aps", "raps"):
        ask(f"set {method}", lambda m=method: model.predict_set(X, method=m, seed=0, **more))
    ask("set per class", lambda: model.predict_set(X, 0.8, class_conditional=True, **more))
    ask("selective", lambda: selected(model.predict_selective(X, coverage=0.7, **more)))
    for score in ("combined", "entropy"):
        ask(f"novelty {score}", lambda s=score: model.novelty_score(X, s, **more))
        ask(f"novelty p {score}", lambda s=score: model.novelty_p_value(X, s, **more))
    ask("explain", lambda: explained(model.explain(X, 5, trust=True, **more)))
    ask("explain left out", lambda: explained(model.explain(None, 3)[:40]))
    ask("kneighbors", lambda: dict(zip(("d", "id"), model.kneighbors(X), strict=True)))
    ask("label issues", lambda: issues(review(model).issues()))
    ask("labels", lambda: model.memory_.labels)
    ask("keys", lambda: model.keys(X))
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        again = AttnKNNClassifier.load(Path(folder) / "model")
        ask("saved", lambda: again.predict_proba(X, **more))
        ask("weights", lambda: weights(again))
    return found


def selected(selection) -> Answers:
    names = ("labels", "accepted", "score", "threshold", "expected_risk", "risk_bound")
    return {name: np.asarray(getattr(selection, name)) for name in names}


def explained(shown) -> Answers:
    neighbors = [one for row in shown for one in row.neighbors]
    found = {
        name: np.array([getattr(one, name) for one in neighbors], dtype=np.float64)
        for name in ("id", "weight", "distance")
    }
    found["without"] = np.array(
        [np.nan if n.proba_without is None else n.proba_without for n in neighbors],
        dtype=np.float64,
    )
    found["set"] = np.array([str(row.prediction_set) for row in shown])
    return found


def issues(table: pd.DataFrame) -> Answers:
    return {str(name): column.to_numpy(dtype=str) for name, column in table.items()}


def weights(model: AttnKNNClassifier) -> np.ndarray:
    """Digest of the head's weights."""
    digest = sha256()
    for tensor in model._predictor.head.state_dict().values():
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return np.array(digest.hexdigest())


def same(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape or one.dtype.kind != other.dtype.kind:
        return False
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def difference(one: np.ndarray, other: np.ndarray) -> str:
    if one.shape != other.shape or one.dtype.kind != "f" or other.dtype.kind != "f":
        return f"{one.dtype} {one.shape} was, {other.dtype} {other.shape} is"
    return f"largest difference {np.nanmax(np.abs(one - other)):.3g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    before = dict(np.load(options.file)) if options.action == "compare" else {}
    found: Answers = {}
    changed_answers = 0
    for name in options.cases.split(","):
        start = time.perf_counter()
        mine = {f"{name}/{what}": a for what, a in answers(*CASES[name]()).items()}
        found |= mine
        line = f"{name}: {len(mine)} answers, {time.perf_counter() - start:.0f} s"
        if before:
            expected = {what: a for what, a in before.items() if what.startswith(f"{name}/")}
            for what in sorted(expected.keys() | mine.keys()):
                if what not in mine or what not in expected:
                    line += f"\n  {what}: only {'after' if what in mine else 'before'}"
                elif not same(expected[what], mine[what]):
                    line += f"\n  {what}: {difference(expected[what], mine[what])}"
                else:
                    continue
                changed_answers += 1
        print(line, flush=True)
    if options.action == "record":
        np.savez(options.file, **found)
    print(f"{len(found)} answers" + (f", {changed_answers} changed" if before else " recorded"))
    return int(changed_answers > 0)


if __name__ == "__main__":
    sys.exit(main())
