"""Ready embeddings: the presets against logistic regression, a network and class shares.

Two tasks: 4,500 images through an EfficientNet-Lite0 (cifar10-lite0), 3,000 of them remembered and
1,500 judged, as 192 principal components of the remembered rows; and 8,000 rows of cifar10-features
(SqueezeNet, 192 components), judged on its first 2,000 test rows. A seed draws the remembered
rows. Choices were made on seeds 101 to 103; the record has 0 to 2.

    python benchmarks/embeddings.py --data-root DATA
    python benchmarks/embeddings.py --data-root DATA --tasks lite0 --methods instant --seeds 101

CPU seconds of this process, one thread; rows of the record that are there are not measured again.
"""

import os
import time
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from keeping import RESULTS, conditions, keep, listed, options_of, read
from scipy.optimize import minimize_scalar
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from nearwise import AttnKNNClassifier
from nearwise.metrics import ece, nll

Task = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
Fitted = Callable[[np.ndarray], np.ndarray]


def lite0(root: Path, seed: int) -> Task:
    """Draw 3,000 of the images; their principal components and those of the others."""
    with np.load(root / "cifar10-lite0" / "lite0_128px.npz") as file:
        X = np.concatenate([file["train"], file["test"]]).astype(np.float32)
        y = np.concatenate([file["train_label"], file["test_label"]])
    order = np.random.default_rng(seed).permutation(len(y))
    rows, new = order[:3000], order[3000:]
    components = PCA(192, random_state=0).fit(X[rows])
    return components.transform(X[rows]), y[rows], components.transform(X[new]), y[new]


def features(root: Path, seed: int) -> Task:
    """Draw 8,000 of the training rows."""
    with np.load(root / "cifar10-features" / "squeezenet_pca192.npz") as file:
        rows = np.random.default_rng(seed).permutation(len(file["train"]))[:8000]
        X, new = file["train"][rows].astype(np.float32), file["test"][:2000].astype(np.float32)
        return X, file["train_label"][rows], new, file["test_label"][:2000]


def sharpened(proba: np.ndarray, power: float) -> np.ndarray:
    """Raise probabilities to a power (1 / temperature), so that each row still sums to 1."""
    raised: np.ndarray = np.maximum(proba, 1e-12) ** power
    return raised / raised.sum(1, keepdims=True)


def best_power(proba: np.ndarray, y: np.ndarray) -> float:
    """Power that makes the NLL of left-out predictions least."""

    def loss(log_power: float) -> float:
        return nll(y, sharpened(proba, float(np.exp(log_power))))

    return float(np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x))


def tempered(make: Callable[[], Any], X: np.ndarray, y: np.ndarray) -> Fitted:
    """Fit a peer, and a temperature to its predictions in three folds."""
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    kept_out = cross_val_predict(make(), X, y, cv=folds, method="predict_proba")
    model, power = make().fit(X, y), best_power(kept_out, y)
    return lambda new: sharpened(model.predict_proba(new), power)


def shares(X: np.ndarray, y: np.ndarray, seed: int) -> Fitted:
    """Predict the class shares."""
    found = np.bincount(y) / len(y)
    return lambda new: np.tile(found, (len(new), 1))


def logistic(X: np.ndarray, y: np.ndarray, seed: int) -> Fitted:
    """Logistic regression on numbers of one common scale."""
    scale = float(np.sqrt(X.var(0).mean()))
    made = tempered(lambda: LogisticRegression(C=0.01, max_iter=300), X / scale, y)
    return lambda new: made(new / scale)


def mlp(X: np.ndarray, y: np.ndarray, seed: int) -> Fitted:
    """A network of one hidden layer, stopped early."""
    options: dict[str, Any] = {"early_stopping": True, "alpha": 0.1, "random_state": seed}
    return tempered(lambda: make_pipeline(StandardScaler(), MLPClassifier((256,), **options)), X, y)


def ours(preset: Any, base: Any = "auto") -> Callable[[np.ndarray, np.ndarray, int], Fitted]:
    """Fit a preset."""

    def fit(X: np.ndarray, y: np.ndarray, seed: int) -> Fitted:
        model = AttnKNNClassifier(preset=preset, estimator=base, random_state=seed).fit(X, y)
        return model.predict_proba

    return fit


TASKS = {"lite0": lite0, "cifar10-features": features}
METHODS = {
    "class shares": shares,
    "logistic + T": logistic,
    "MLP + T": mlp,
    "instant, base=None": ours("instant", None),
    "instant": ours("instant"),
    "default": ours("default"),
}


def measure(method: str, task: Task, seed: int) -> dict[str, float]:
    """Fit and judge one method."""
    X, y, new, truth = task
    start = time.process_time()
    predict = METHODS[method](X, y, seed)
    fit = time.process_time() - start
    start = time.process_time()
    proba = predict(new)
    return {
        "accuracy": float((proba.argmax(1) == truth).mean()),
        "nll": nll(truth, proba),
        "ece": ece(truth, proba),
        "fit_cpu_s": round(fit, 2),
        "us_per_row": round((time.process_time() - start) / len(new) * 1e6, 1),
    }


def summary(results: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Mean, least and most of every figure over the seeds, by task and method."""
    found: dict[str, dict[str, list[float]]] = {}
    for key, figures in results.items():
        name = key.rsplit("/", 1)[0]
        for figure, value in figures.items():
            found.setdefault(name, {}).setdefault(figure, []).append(value)
    return {
        name: {"seeds": len(next(iter(figures.values())))}
        | {k: [round(float(f(v)), 4) for f in (np.mean, min, max)] for k, v in figures.items()}
        for name, figures in found.items()
    }


def main() -> None:
    """Measure what the record lacks."""
    parser = options_of(
        __doc__, data_root=Path("data"), tasks=",".join(TASKS), methods=";".join(METHODS),
        seeds="0,1,2", out=RESULTS / "embeddings.json",
    )  # fmt: skip
    chosen = parser.parse_args()
    record = read(chosen.out) or {"results": {}}
    warnings.simplefilter("ignore")
    for seed, name in product(listed(chosen.seeds, int), listed(chosen.tasks)):
        task = TASKS[name](chosen.data_root, seed)
        for method in chosen.methods.split(";"):
            key = f"{name}/{method}/{seed}"
            if key in record["results"]:
                continue
            ours("instant")(task[0][:300], task[1][:300], 0)(task[2][:9])  # compiles the loops
            record["results"][key] = measure(method, task, seed)
            print(key, record["results"][key], flush=True)
            record |= conditions() | {"summary": summary(record["results"])}
            record["hardware"]["load"] = round(os.getloadavg()[0], 1)
            keep(record, chosen.out)


if __name__ == "__main__":
    main()
