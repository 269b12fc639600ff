"""Photographs in a folder: the presets against models of the same features, and a network.

Target: with 3,000 images the default reaches an accuracy of .85 and an NLL of .46, and fits in two
minutes on two cores; with 600 images it is 10 points above the network trained from scratch.

    python benchmarks/photographs.py --data-root DATA
    python benchmarks/photographs.py --data-root DATA --methods "resnet18 from scratch" --seeds 0

CIFAR-10, each image enlarged to 128 pixels and written as PNG, one folder per class. A seed draws
3,000 or 600 of the first 6,000 training images; the first 1,500 test images are judged. The presets
and the network read the folder; logistic regression and 10-NN get the features of
EfficientNet-Lite0 ready made, so their times are without it. C, and their temperature, are chosen
in five folds of the remembered images. Wall and CPU seconds, two threads; other processes may run
beside, as the load in the record says.
"""

import atexit
import io
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from keeping import RESULTS, keep_runs, listed, means_by, options_of
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from texts import Votes, peer

from nearwise import AttnKNNClassifier
from nearwise.data import read_images
from nearwise.metrics import ece, nll
from nearwise.nn.lite0 import NAME, lite0

SIDE, N_DRAWN_FROM, N_TEST = 128, 6000, 1500
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
MEASURES = {"accuracy": 4, "nll": 4, "ece": 4, "fit_seconds": 1, "fit_cpu_seconds": 1}
Fitted = Callable[[Path], np.ndarray]


@cache
def written(root: Path, part: str, n: int) -> list[Path]:
    """Write the first images of a part as PNG, in folders of their classes; return the files."""
    shards = sorted((root / "cifar10").rglob(f"*{part}*.parquet"))
    rows = pd.concat(map(pd.read_parquet, shards), ignore_index=True).head(n)
    folder, files = Path(tempfile.mkdtemp(prefix=f"photographs-{part}-")), []
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for at, (image, label) in enumerate(zip(rows["img"], rows["label"], strict=True)):
        file = folder / CLASSES[label] / f"{at:05}.png"
        file.parent.mkdir(exist_ok=True)
        small = Image.open(io.BytesIO(image["bytes"])).convert("RGB")
        small.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(file, compress_level=1)
        files.append(file)
    return files


def drawn(root: Path, n: int, seed: int) -> Path:
    """Folder with links to some of the training images."""
    files, folder = written(root, "train", N_DRAWN_FROM), Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for at in np.random.default_rng(seed).permutation(N_DRAWN_FROM)[:n]:
        link = folder / files[at].parent.name / files[at].name
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(files[at])
    return folder


def labels_of(files: list[Path]) -> np.ndarray:
    """Class positions, as the names of the folders tell."""
    return np.array([CLASSES.index(file.parent.name) for file in files])


@cache
def features_of(folder: Path) -> np.ndarray:
    """Features of all images of a folder, in the order of their names."""
    images = torch.from_numpy(read_images(folder)).movedim(3, 1)
    return lite0().features(images).numpy()


def ours(preset: Any, embedder: str) -> Callable[..., Fitted]:
    """Fit a preset to the folder."""

    def fit(folder: Path, y: np.ndarray, seed: int) -> Fitted:
        settings = {"embedder": embedder}
        model = AttnKNNClassifier(preset=preset, settings=settings, random_state=seed, verbose=0)
        return model.fit(folder).predict_proba

    return fit


def of_features(*models: Any) -> Callable[..., Fitted]:
    """Fit a peer to the features."""

    def fit(folder: Path, y: np.ndarray, seed: int) -> Fitted:
        encoder = lambda X: make_pipeline(StandardScaler())  # noqa: E731
        X = pd.DataFrame(features_of(folder))
        predict = peer(encoder, *models)(X, y, seed)
        return lambda new: predict(pd.DataFrame(features_of(new)))

    return fit


LINEAR = [LogisticRegression(C=C, max_iter=300) for C in (1e-4, 1e-3, 1e-2)]
METHODS = {
    "logistic": of_features(*LINEAR),
    "10-NN, cosine": of_features(Votes(10, metric="cosine")),
    "instant": ours("instant", NAME),
    "default": ours("default", NAME),
    "resnet18 from scratch": ours("default", "resnet18"),
}


def measure(root: Path, n_train: int, method: str, seed: int) -> dict[str, Any]:
    """Fit and judge one method."""
    tests = sorted(written(root, "test", N_TEST))
    folder, truth = drawn(root, n_train, seed), labels_of(tests)
    y = labels_of(sorted(folder.rglob("*.png")))
    if METHODS[method].__qualname__.startswith("of_features"):
        features_of(folder)
    torch.set_num_threads(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wall, cpu = time.perf_counter(), time.process_time()
        predict = METHODS[method](folder, y, seed)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        proba = predict(tests[0].parents[1])
    return {
        "n_test": len(truth),
        "accuracy": float((proba.argmax(1) == truth).mean()),
        "nll": nll(truth, proba),
        "ece": ece(truth, proba),
        "fit_seconds": wall,
        "fit_cpu_seconds": cpu,
        "load": round(os.getloadavg()[0], 1),
    }


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the seeds of each number of images and method, choices apart from the record."""
    sizes = sorted({run["n_train"] for run in runs}, reverse=True)
    return means_by(runs, {"n_train": sizes, "method": METHODS}, MEASURES)


def main() -> None:
    """Measure what the record lacks."""
    parser = options_of(
        __doc__, data_root=Path("data"), sizes="3000,600", methods=";".join(METHODS),
        seeds="0,1,2,3,4", out=RESULTS / "photographs.json",
    )  # fmt: skip
    options = parser.parse_args()
    wanted = [
        {"n_train": n_train, "method": method, "seed": seed}
        for seed in listed(options.seeds, int)
        for n_train in listed(options.sizes, int)
        for method in options.methods.split(";")
    ]
    keep_runs(wanted, partial(measure, options.data_root), summary, options.out)


if __name__ == "__main__":
    main()
