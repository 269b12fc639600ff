"""Out-of-distribution rows: are unseen classes, or other images, distinguished from known rows?

Claims: with one class held out of training, the default novelty score has a higher AUROC than the
largest probability and than methods for outliers; p <= .05 flags about one known row in twenty.

    python benchmarks/out_of_distribution.py --data-root DATA
    python benchmarks/out_of_distribution.py --datasets cifar10 --seeds 0 --data-root DATA

Tables: each class is held out in turn (of letter the first five) and is the novel one; 70 % of the
other rows are trained on, 30 % are the known ones. letter has 4,000 rows, cifar10-features 6,000.
Images: the classifier is trained on CIFAR-10 and meets CIFAR-100 and MNIST; `--networks` takes over
what study.py trained with the same seed, runs/study/checkpoints/attention. Rows that the JSON file
holds already are kept.
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from keeping import RESULTS, interval, keep_runs, listed, options_of
from nearwise_lab.comparisons import paired_difference
from nearwise_lab.data import load_dataset, load_images
from nearwise_lab.experiments.study.inputs import make_inputs
from nearwise_lab.experiments.study.key_space import key_space
from nearwise_lab.experiments.study.presets import CORRECTED
from nearwise_lab.experiments.study.settings import resolve
from sklearn.ensemble import IsolationForest
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from sklearn.model_selection import train_test_split
from sklearn.neighbors import LocalOutlierFactor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from nearwise import AttnKNNClassifier
from nearwise.estimators import Settings
from nearwise.estimators.uncertainty.novelty import NoveltyScore
from nearwise.functional import topk_neighbors

TABLES = "digits,wine,letter,cifar10-features"
MOST_ROWS = {"letter": 4000, "cifar10-features": 6000}
MOST_CLASSES = {"letter": 5}
N_MET = 2000  # images of each other data set
K = 50
OWN: tuple[NoveltyScore, ...] = ("combined", "entropy")
ALARM = 0.05
Scores = dict[str, np.ndarray]


def of_table(name: str, which: int, root: str | None) -> dict[str, np.ndarray]:
    """Give training rows, known rows, and as novel ones those of a class held out."""
    data = load_dataset(name, data_root=root)
    X, y = np.asarray(data.X), np.asarray(data.y)
    if name in MOST_ROWS:
        some = np.random.default_rng(0).permutation(len(y))[: MOST_ROWS[name]]
        X, y = X[some], y[some]
    novel = np.unique(y)[which]
    known = np.flatnonzero(y != novel)
    train, test = train_test_split(known, test_size=0.3, stratify=y[known], random_state=which)
    return {
        "X": X[train], "y": y[train], "known": X[test], "known labels": y[test],
        "held-out class": X[y == novel],
    }  # fmt: skip


def of_images(seed: int, root: str | None) -> dict[str, np.ndarray]:
    """Give the study's training and test images of CIFAR-10, and images of two other data sets."""
    data = load_images("cifar10", data_root=root)
    rows = make_inputs(data, resolve(data, CORRECTED, False, {})[0], seed)
    digits = np.asarray(load_images("mnist", split="test", limit=N_MET, data_root=root).X)
    others = load_images("cifar100", split="test", limit=N_MET, data_root=root)
    return {
        "X": rows.X_train, "y": rows.given_labels,
        "known": rows.X_test, "known labels": rows.classes[rows.y_test.numpy()],
        "cifar100": np.asarray(others.X),
        "mnist": np.repeat(np.pad(digits, ((0, 0), (2, 2), (2, 2), (0, 0))), 3, axis=3),
    }  # fmt: skip


def measure(root: str | None, networks: Path, dataset: str, which: int) -> dict[str, Any]:
    """Fit the default and peers, and score known and novel rows; images get two views."""
    images = dataset == "cifar10"
    rows = of_images(which, root) if images else of_table(dataset, which, root)
    X, y, known, labels = (rows.pop(key) for key in ("X", "y", "known", "known labels"))
    start = time.perf_counter()
    settings = Settings(tta=("flip",), checkpoint_dir=networks) if images else None
    model = AttnKNNClassifier(settings=settings, random_state=which).fit(X, y)
    seconds = round(time.perf_counter() - start, 1)
    peers = {} if images else fitted_peers(X, which)
    query, usual = model.query(known), scores(model, peers, known)
    return {
        "n_train": len(y),
        "n_known": len(labels),
        "fit_seconds": seconds,
        "accuracy": float((model.classes_[query.proba().argmax(1)] == labels).mean()),
        "false alarms": {s: float((query.novelty_p_value(s) <= ALARM).mean()) for s in OWN},
        "met": {
            kind: {
                "n": len(novel),
                "flagged": float((model.novelty_p_value(novel) <= ALARM).mean()),
                "detection": detection(usual, scores(model, peers, novel)),
            }
            for kind, novel in rows.items()
        },
    }


def fitted_peers(X: np.ndarray, seed: int) -> dict[str, Any]:
    """Methods for outliers, which see no label, on standardised columns."""
    kinds = {
        "local outlier factor": LocalOutlierFactor(novelty=True),
        "isolation forest": IsolationForest(random_state=seed),
    }
    return {name: make_pipeline(StandardScaler(), kind).fit(X) for name, kind in kinds.items()}


def scores(model: AttnKNNClassifier, peers: dict[str, Any], rows: np.ndarray) -> Scores:
    """Novelty by each score, larger for rows that look more novel."""
    query = model.query(rows)
    found: Scores = {name: query.novelty_score(name) for name in OWN}
    found["largest probability"] = 1 - query.proba().max(axis=1)
    for name, peer in peers.items():
        found[name] = -peer.score_samples(rows)
    if rows.ndim == 4:
        keys = key_space(model, rows)
        assert keys.head is not None
        found["largest probability of its network"] = 1 - keys.head[1].max(axis=1)
        found["50th neighbor in the network's keys"] = (
            topk_neighbors(keys.test, keys.memory, K).distances[:, -1].numpy()
        )
    return found


def detection(known: Scores, novel: Scores) -> dict[str, dict[str, float]]:
    """Measure how well each score finds novel rows among known ones."""
    found = {}
    for name in known:
        both = np.concatenate([known[name], novel[name]])
        is_novel = np.repeat([0, 1], [len(known[name]), len(novel[name])])
        flagged, hits, _ = roc_curve(is_novel, both, drop_intermediate=False)
        found[name] = {
            "auroc": float(roc_auc_score(is_novel, both)),
            "aupr": float(average_precision_score(is_novel, both)),
            "fpr95": float(flagged[np.argmax(hits >= 0.95)]),
        }
    return found


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a data set, kind of novel rows and score: means with 95 % t-intervals."""
    rows = []
    for dataset, kind in dict.fromkeys((r["dataset"], kind) for r in runs for kind in r["met"]):
        of = [r for r in runs if r["dataset"] == dataset]
        detections = [r["met"][kind]["detection"] for r in of]
        for name in detections[0]:
            row: dict[str, Any] = {"dataset": dataset, "met": kind, "score": name, "runs": len(of)}
            row |= {
                key: interval([t[name][key] for t in detections], 4) for key in detections[0][name]
            }
            if name != OWN[0]:
                own, other = ([t[n]["auroc"] for t in detections] for n in (OWN[0], name))
                row["auroc of combined minus it"] = paired_difference(own, other).as_dict()
            if name in OWN:
                row["false alarms"] = interval([r["false alarms"][name] for r in of], 4)
            if name == OWN[0]:
                row["flagged"] = interval([r["met"][kind]["flagged"] for r in of], 4)
            rows.append(row)
    return rows


def main() -> None:
    """Run what is missing and keep every row."""
    parser = options_of(
        __doc__, datasets=TABLES, seeds="0", data_root=None,
        networks=Path("runs/out_of_distribution"), out=RESULTS / "out_of_distribution.json",
    )  # fmt: skip
    options = parser.parse_args()

    def wanted() -> Iterator[dict[str, Any]]:
        for name in listed(options.datasets):
            if name == "cifar10":
                runs: Sequence[int] = listed(options.seeds, int)
            else:
                classes = np.unique(load_dataset(name, data_root=options.data_root).y)
                runs = range(len(classes))[: MOST_CLASSES.get(name)]
            yield from ({"dataset": name, "which": which} for which in runs)

    keep_runs(wanted(), partial(measure, options.data_root, options.networks), summary, options.out)


if __name__ == "__main__":
    main()
