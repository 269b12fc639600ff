"""Out-of-distribution detection: are unseen classes or data distinguished from known ones.

Questions: with one class held out of training, has "combined" a higher AUROC than the maximum
probability; does p <= .05 flag about one known row in twenty; does CIFAR-10 against 2,000 images of
CIFAR-100 reach an AUROC of .92, above the maximum probability, the energy and the plain k-NN
distance of the classifier's own network.

    python benchmarks/out_of_distribution.py --data-root DATA                 # tables, minutes
    python benchmarks/out_of_distribution.py --datasets cifar10 --size small  # images, minutes
    python benchmarks/out_of_distribution.py --datasets cifar10 --size full --seeds 0-2
        # a quarter of an hour per seed on two cores

Tables: every class of --classes is held out in turn and is the novel one; of the others 70 % are
trained on, 30 % are the known rows. letter is a random 4,000 rows, cifar10-features the first
6,000; settings in the JSON. cifar10 trains on images and meets CIFAR-100 and MNIST (digits set in
32 x 32, three channels); "small" is 2,000 images, a small network and 8 epochs: it shows that the
command runs, not how good the score gets. Rows are kept in
runs/out_of_distribution as they finish, networks too; run again, it goes on. Writes
benchmarks/results/out_of_distribution.json, keeping its other data sets.
"""

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nearwise_lab.cli.settings_text import parse_seeds
from nearwise_lab.comparisons import paired_difference
from nearwise_lab.data import load_dataset, load_images
from nearwise_lab.experiments.study.key_space import network_view
from nearwise_lab.results.measures import mean_with_interval
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from sklearn.model_selection import train_test_split

from nearwise import AttnKNNClassifier
from nearwise.classifier.query import Query
from nearwise.classifier.uncertainty.novelty import NoveltyScore
from nearwise.cli.rows.parsing import split_list
from nearwise.conditions import command_line, hardware, versions
from nearwise.functional import topk_neighbors
from nearwise.safe_files import plain, write_aside

HERE = Path(__file__).parent
TABLES = ("digits", "wine", "letter", "cifar10-features")
SCORES: tuple[NoveltyScore, ...] = ("combined", "entropy")
BASELINE = "max_proba"
# Of the classifier's network, one view: largest probability, energy of the logits (Liu et al.,
# NeurIPS 2020), distance to the K-th nearest key (Sun et al., ICML 2022).
NETWORK_MAX_PROBA, ENERGY, KNN = "network_max_proba", "network_energy", "network_knn"
K = 50
MOST = {"letter": 4000, "cifar10-features": 6000}
CHEAP: dict[str, Any] = {
    "estimator": None,
    "settings": {"embedder": "identity", "head": {"epochs": 8}},
}
SETTINGS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(TABLES, CHEAP),
    "small": {"embedder": "resnet-small", "train": {"epochs": 8}},
    "full": {"tta": ["flip"]},
}


def held_out_class(name: str, which: int, root: str | None) -> dict[str, Any]:
    """Train without a class, then meet it."""
    dataset = load_dataset(name, data_root=root)
    X, y = np.asarray(dataset.X), np.asarray(dataset.y)
    if name in MOST:
        some = np.random.default_rng(0).choice(len(y), MOST[name], replace=False)
        some = np.arange(MOST[name]) if name == "cifar10-features" else some
        X, y = X[some], y[some]
    novel = np.unique(y)[which]
    known = np.flatnonzero(y != novel)
    train, test = train_test_split(known, test_size=0.3, stratify=y[known], random_state=which)
    start = time.perf_counter()
    model = AttnKNNClassifier(random_state=which, n_jobs=1, **SETTINGS[name])
    model.fit(X[train], y[train])
    met = {"held-out class": X[y == novel]}
    return {
        "fit_seconds": time.perf_counter() - start,
        "n_train": len(train),
        "accuracy": float((model.predict(X[test]) == y[test]).mean()),
        **meet(model, X[test], met),
    }


def other_images(
    size: str, seed: int, root: str | None, device: str, networks: Path
) -> dict[str, Any]:
    """Train on CIFAR-10, then meet CIFAR-100 and MNIST."""
    few = size == "small"
    ours = load_images("cifar10", limit=(2000, 500) if few else None, data_root=root)
    met = {
        "cifar100": load_images(
            "cifar100", split="test", limit=500 if few else 2000, data_root=root
        ).X,
        "mnist": in_color(
            np.asarray(
                load_images("mnist", split="test", limit=500 if few else 2000, data_root=root).X
            )
        ),
    }
    test = np.zeros(len(ours), dtype=bool)
    test[ours.test_index] = True
    X, y = np.asarray(ours.X), np.asarray(ours.y)
    start = time.perf_counter()
    settings = {**SETTINGS[size], "device": device, "checkpoint_dir": networks}
    model = AttnKNNClassifier(random_state=seed, settings=settings)
    model.fit(X[~test], y[~test])
    return {
        "fit_seconds": time.perf_counter() - start,
        "n_train": int((~test).sum()),
        "accuracy": float((model.predict(X[test]) == y[test]).mean()),
        **meet(model, X[test], met),
    }


def in_color(digits: np.ndarray) -> np.ndarray:
    """MNIST as CIFAR has it: 32 x 32 with a black edge, three equal channels."""
    return np.repeat(np.pad(digits, ((0, 0), (2, 2), (2, 2), (0, 0))), 3, axis=3)


def scores(model: AttnKNNClassifier, query: Query, rows: Any) -> dict[str, np.ndarray]:
    """Novelty scores of rows, larger is more novel, those of other methods among them."""
    found: dict[str, np.ndarray] = {name: query.novelty_score(name) for name in SCORES}
    found[BASELINE] = 1 - query.proba().max(axis=1)
    if rows.ndim == 4:
        view = network_view(model, rows)
        head = model._predictor.row_models.networks[0].head
        if view.test is not None and head is not None:
            with torch.no_grad():
                logits = head.cpu()(view.space.test)
            found[NETWORK_MAX_PROBA] = 1 - np.exp(view.test).max(axis=1)
            found[ENERGY] = -logits.logsumexp(dim=1).numpy()
        k = min(K, len(view.space.memory))
        found[KNN] = topk_neighbors(view.space.test, view.space.memory, k).distances[:, -1].numpy()
    return found


def meet(model: AttnKNNClassifier, known: Any, novel: dict[str, Any]) -> dict[str, Any]:
    """Every score's detection of every kind of novel rows, and the alarms at p <= .05."""
    query = model.query(known)
    usual = scores(model, query, known)
    found: dict[str, Any] = {
        "n_known": len(known),
        "false_alarms": {
            name: float((query.novelty_p_value(name) <= 0.05).mean()) for name in SCORES
        },
        "met": {},
    }
    for kind, rows in novel.items():
        query = model.query(rows)
        odd = scores(model, query, rows)
        found["met"][kind] = {
            "n": len(rows),
            "flagged": float((query.novelty_p_value() <= 0.05).mean()),
            "detection": {name: detection(usual[name], odd[name]) for name in usual},
        }
    return found


def detection(known: np.ndarray, novel: np.ndarray) -> dict[str, float]:
    """Measure how well a score, larger for novel rows, finds them among known ones."""
    scores = np.concatenate([known, novel])
    is_novel = np.repeat([0, 1], [len(known), len(novel)])
    flagged, found, _ = roc_curve(is_novel, scores, drop_intermediate=False)
    return {
        "auroc": float(roc_auc_score(is_novel, scores)),
        "aupr_novel": float(average_precision_score(is_novel, scores)),
        "aupr_known": float(average_precision_score(1 - is_novel, -scores)),
        "fpr95": float(flagged[np.argmax(found >= 0.95)]),
    }


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over held-out classes (or seeds) with 95 % intervals."""
    found: dict[str, Any] = {
        "runs": len(rows),
        "accuracy": interval([row["accuracy"] for row in rows]),
        "false_alarms_at_.05": {
            name: interval([row["false_alarms"][name] for row in rows]) for name in SCORES
        },
    }
    for kind in rows[0]["met"]:
        told = [row["met"][kind] for row in rows]
        names = [*told[0]["detection"]]
        measured = {
            name: {
                key: interval([one["detection"][name][key] for one in told])
                for key in told[0]["detection"][name]
            }
            for name in names
        }
        auroc = {name: [one["detection"][name]["auroc"] for one in told] for name in names}
        found[kind] = {
            "detection": measured,
            "flagged_at_.05": interval([one["flagged"] for one in told]),
            **{
                f"auroc_minus_{peer}": {
                    name: paired_difference(auroc[name], auroc[peer]).as_dict() for name in SCORES
                }
                for peer in names
                if peer not in SCORES
            },
        }
    return found


def interval(values: list[float]) -> dict[str, Any]:
    """Mean, ends of its 95 % interval, and the number of values."""
    mean = mean_with_interval(values)
    return {"mean": mean.mean, "low": mean.low, "high": mean.high, "n": len(values)}


def main() -> None:
    """Run what is missing and write the summary."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-root", help="where data sets lie; default NEARWISE_DATA")
    parser.add_argument("--datasets", default=",".join(TABLES), help="these, or cifar10")
    parser.add_argument("--classes", default="0-9", help="positions of the classes to hold out")
    parser.add_argument("--seeds", default="0", help="of cifar10")
    parser.add_argument("--size", choices=("small", "full"), default="small", help="of cifar10")
    parser.add_argument("--device", default="auto", help="of cifar10")
    parser.add_argument(
        "--networks", type=Path, help="of cifar10: networks trained before; default: --runs"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/out_of_distribution"))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "out_of_distribution.json")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    options.runs.mkdir(parents=True, exist_ok=True)
    told = json.loads(options.out.read_text()) if options.out.exists() else {}
    root = options.data_root
    for name in split_list(options.datasets):
        images = name == "cifar10"
        label = f"{name}-{options.size}" if images else name
        rows = []
        for which in parse_seeds(options.seeds if images else options.classes):
            place = options.runs / f"{label}-{which}.json"
            if not images and which >= len(np.unique(load_dataset(name, data_root=root).y)):
                continue
            if not place.exists():
                found = (
                    other_images(
                        options.size, which, root, options.device, options.networks or options.runs
                    )
                    if images
                    else held_out_class(name, which, root)
                )
                write_aside(place, json.dumps(plain(found)).encode())
            rows.append(json.loads(place.read_text()))
        told[label] = {
            "command": f"python benchmarks/{command_line()}",
            "hardware": hardware(),
            "versions": versions(),
            "settings": SETTINGS[options.size if images else name],
            **summarize(rows),
        }
        write_aside(options.out, f"{json.dumps(plain(told), indent=1)}\n".encode())
        print(label, {key: told[label][key] for key in ("runs", "accuracy")}, flush=True)


if __name__ == "__main__":
    main()
