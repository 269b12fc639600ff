"""Mechanisms against wrong labels: each added to forward correction alone, or left out of several.

Forward correction leads predictions of true labels through the transition wherever they are scored.
Stacked on it: "memory" (neighbors vote for posterior labels), "targets" (models are fitted to
posterior labels), "implied" (predictions of true labels that those of given ones imply join the
base), "round one" (the same where the transition is estimated), "votes" (of posterior labels, in
round one), and of images "correction" (a network corrects its own labels) and "agreement" (of two
networks). Switched off here by replacing them; fits of the same labels are shared by the arms.

    python benchmarks/label_noise_ablation.py tables --seeds 101,102
    python benchmarks/label_noise_ablation.py images --names digits-images --rows 600
        --seeds 103,104,105 --noises sym30,asym30
    python benchmarks/label_noise_ablation.py images --names cifar10 --rows 3000 --seeds 103
        --noises sym30,worse --widths 8,16,32

One JSON line per fit in --out; run again, it goes on.
"""

import argparse
import copy
import hashlib
import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pretrain_tasks import read_table
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from nearwise import review
from nearwise.classifier import AttnKNNClassifier
from nearwise.classifier.fit import base, image_networks, networks
from nearwise.classifier.model.label_model import RememberedLabels
from nearwise.classifier.noise import fitting, true_labels
from nearwise.classifier.noise.noisy_labels import ForwardCorrection, NoisyLabels
from nearwise.lab.corrupt import label_noise
from nearwise.lab.data import load_dataset, load_human_labels
from nearwise.metrics import evaluate_probabilities

TABLES = (
    "banknote-authentication,balance-scale,mammographic-mass,connectionist-vowel,saheart,"
    "systhetic-control,led7digit,dermatology,yeast-4class,waveform-v1,eeg-eye-state,abalone-3class,"
    "page-blocks,texture,robot-nav-sensor-readings-4,cardiotocography-3class"
)
NOISES: dict[str, tuple[Any, float]] = {
    "sym20": ("symmetric", 0.2),
    "sym30": ("symmetric", 0.3),
    "asym30": ("asymmetric", 0.3),
    "none": ("symmetric", 0.0),
}
IMPLIED = {"implied", "round one"}
OF_TABLES = {"memory", "targets", "votes", *IMPLIED}
KEPT = {"memory", *IMPLIED}
OF_IMAGES = {*OF_TABLES, "correction", "agreement"}
ARMS: dict[str, dict[str, set[str]]] = {
    "tables": {
        "forward": set(),
        **{f"+{part}": {part} for part in ("memory", "targets", "votes")},
        "+implied": IMPLIED,
        "full": OF_TABLES,
        **{f"-{part}": OF_TABLES - {part} for part in ("targets", "votes")},
        "-implied": OF_TABLES - IMPLIED,
        "kept": KEPT,
        **{f"kept-{part}": KEPT - {part} for part in KEPT},
        **{f"kept+{part}": KEPT | {part} for part in ("targets", "votes")},
    },
    "images": {
        "forward": set(),
        **{f"+{part}": {part} for part in ("memory", "targets", "correction")},
        "full": OF_IMAGES,
        **{f"-{part}": OF_IMAGES - {part} for part in OF_IMAGES},
    },
}
on: set[str] = set()
known: dict[str, Any] = {}


def switch(owner: Any, name: str, part: str, other: Callable[..., Any]) -> None:
    """Replace a function where a part is off; `other` gets it before the arguments."""
    whole = getattr(owner, name)

    def chosen(*args: Any, **options: Any) -> Any:
        return whole(*args, **options) if part in on else other(whole, *args, **options)

    setattr(owner, name, chosen)


def share(owner: Any, name: str, key: Callable[..., Any]) -> None:
    """Let a function give what it gave before for the same key."""
    whole = getattr(owner, name)

    def shared(*args: Any, **options: Any) -> Any:
        described = hashlib.md5(repr(name).encode())
        for part in key(*args, **options):
            raw = isinstance(part, np.ndarray)
            described.update(np.ascontiguousarray(part).tobytes() if raw else repr(part).encode())
        at = described.hexdigest()
        if at not in known:
            known[at] = whole(*args, **options)
        return copy.deepcopy(known[at])

    setattr(owner, name, shared)


def prepare() -> None:
    """Put the switches in, and share models among the arms."""
    switch(NoisyLabels, "labels", "memory", lambda _, s, bank: RememberedLabels(bank.labels, None))
    switch(fitting, "with_targets", "targets", lambda _, model, *rest: model)
    switch(ForwardCorrection, "reading_names", "implied", lambda _, s, name: (name,))
    switch(NoisyLabels, "pool_options", "implied", lambda _, s, parts: [parts])
    switch(true_labels, "clearly_lower", "round one", lambda *rest: False)
    predictor = true_labels.TrueLabelPredictor
    switch(predictor, "_cross_fit", "votes", lambda whole, *rest: (whole(*rest)[0], {}))
    switch(fitting, "_raised", "agreement", lambda _, plain, found, *rest: (plain, found))
    NoisyLabels.likelihood = (  # type: ignore[method-assign]
        lambda self, labels: (
            self.matrices[0].T[torch.from_numpy(labels)] if "correction" in on else None
        )
    )

    def of_candidate(one: Any, view: Any, labels: Any, weight: Any, fold: Any) -> Any:
        given = [one.name, one.model, view[fold[0]], labels[fold[0]]]
        given.append(None if weight is None else weight[fold[0]])
        return given + ([*fold, labels, weight] if one.stops_on_held_out else [])

    def of_network(kind: str, _: Any, rows: Any, *given: Any, **options: Any) -> Any:
        labels, weight, (train, held_out), n_classes, settings = given
        likelihood = options.get("likelihood")
        found = None if likelihood is None else likelihood.numpy()
        some = [labels, weight, train, held_out, sorted(settings.items())]
        return [kind, n_classes, options["seed"], found, *some]

    def of_pair(pair: Any) -> Any:
        return [pair.problem.labels, pair.problem.folds[0][0], pair.settings.seed]

    share(base.Candidate, "_fitted", of_candidate)
    share(networks, "train_member", of_network)
    share(image_networks._LabelNetworks, "unseen", of_pair)


def table(options: argparse.Namespace, name: str, seed: int) -> tuple[Any, ...]:
    """Training rows and classes, and those of the test, of classes with ten rows or more."""
    found = read_table(options.tables, name)
    classes, counts = np.unique(found.labels, return_counts=True)
    often = np.isin(found.labels, classes[counts >= 10])
    X, y = found.frame[often].reset_index(drop=True), found.labels[often]
    split = train_test_split(np.arange(len(y)), test_size=0.4, stratify=y, random_state=seed)
    rng = np.random.default_rng(seed)
    train, test = rng.permutation(split[0])[: options.rows], rng.permutation(split[1])[:1500]
    classes = np.unique(y[train])
    test = test[np.isin(y[test], classes)]
    codes = [np.searchsorted(classes, y[rows]) for rows in (train, test)]
    frames = [X.iloc[rows].reset_index(drop=True) for rows in (train, test)]
    return frames[0], codes[0], frames[1], codes[1], None


def images(options: argparse.Namespace, name: str, seed: int) -> tuple[Any, ...]:
    """Training images and classes, and those of the test: other training images of CIFAR-10."""
    found = load_dataset(name, data_root=options.data_root)
    codes = np.searchsorted(found.classes, found.y)
    cifar = name == "cifar10"
    order = np.random.default_rng(seed).permutation(50_000 if cifar else len(codes))
    test = order[-4000:] if cifar else order[options.rows :][:4000]
    train, human = order[: options.rows], None
    if cifar:
        every = load_human_labels("worse", data_root=options.data_root)
        human = np.searchsorted(found.classes, every[train])
    return found.X[train], codes[train], found.X[test], codes[test], human


def measure(model: AttnKNNClassifier, X: Any, y: Any, given: Any, true: Any) -> dict[str, Any]:
    """Measure predictions on right labels, the rate, and how wrong labels are ranked."""
    scores = evaluate_probabilities(y, model.predict_proba(X))
    wrong, rate = given != true, review(model).noise.rate
    row = {name: float(scores[name]) for name in ("accuracy", "nll", "ece")}
    row |= {"wrong": float(wrong.mean()), "rate": float(rate)}
    if wrong.any():
        issues = review(model).issues()
        row["auc"] = float(roc_auc_score(wrong[issues["id"]], issues["suspicion"]))
    return row


def main(arguments: list[str]) -> None:
    """Fit what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=ARMS)
    parser.add_argument("--names", default=TABLES)
    parser.add_argument("--seeds", default="101,102")
    parser.add_argument("--noises", default="sym30,asym30,sym20,none")
    parser.add_argument("--arms", default="")
    parser.add_argument("--rows", type=int, default=500, help="of the training")
    parser.add_argument("--widths", default="", help="of the network of images")
    parser.add_argument("--tables", type=Path, default=Path("../shared/data/tables"))
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--out", type=Path, default=Path("runs/label_noise_ablation.jsonl"))
    options = parser.parse_args(arguments)
    prepare()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = {tuple(json.loads(line)["key"]) for line in lines}
    settings: dict[str, Any] = {}
    if options.widths:
        settings["embedder_options"] = {"widths": [int(w) for w in options.widths.split(",")]}
    arms = ARMS[options.kind]
    several = (options.seeds, options.noises, options.names)
    for seed, noise, name in itertools.product(*(part.split(",") for part in several)):
        known.clear()
        load = table if options.kind == "tables" else images
        X, true, X_test, y_test, given = load(options, name, int(seed))
        if noise != "worse":
            kind, rate = NOISES[noise]
            classes = np.arange(true.max() + 1)
            given = label_noise(true, rate, kind=kind, seed=int(seed), classes=classes)
        for arm in options.arms.split(",") if options.arms else arms:
            key = (name, int(seed), noise, arm, options.rows)
            if key in done:
                continue
            on.clear()
            on.update(arms[arm])
            start = time.perf_counter()
            model = AttnKNNClassifier(
                label_noise="auto", random_state=int(seed), n_jobs=1, settings=settings or None
            ).fit(X, given)
            row = {"key": key, **measure(model, X_test, y_test, given, true)}
            row["seconds"] = time.perf_counter() - start
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
