"""The corrected method on columns: methods of a comparison, run on the study's experiments.

The head comes trained: what needs another (a k-ensemble, adaptive k, more than 64 neighbors) is
left out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.pipeline import make_pipeline

from nearwise.data import split_dataset
from nearwise_lab.corrupt import label_noise, long_tail
from nearwise_lab.experiments.methods import METHODS, Method, MethodContext
from nearwise_lab.experiments.neighbors import PlainKNN
from nearwise_lab.experiments.preprocess import FeatureEncoder
from nearwise_lab.experiments.runner import Job
from nearwise_lab.experiments.study.corrected_session import (
    ABLATIONS,
    MOST_NEIGHBORS,
    NOISE_MODEL,
    CorrectedSession,
)
from nearwise_lab.experiments.study.findings import CURVE_SIZES, classifier_findings
from nearwise_lab.experiments.study.human_noise import human_kinds, human_labels
from nearwise_lab.experiments.study.inputs import stratified_part
from nearwise_lab.experiments.study.jobs import chosen_ablations
from nearwise_lab.experiments.trial import TEST_SIZE, Split, make_split, run_trial
from nearwise_lab.records import Record

PLAIN = {
    "uniform": "knn-uniform",
    "distance": "knn-distance",
    "distance-tuned": "knn-tuned",
    "mlp+temperature": "mlp",
}
_HUMAN = "human-"


def main_jobs(session: CorrectedSession) -> list[Job]:
    """Plain neighbors, the MLP bag with temperature, and attention."""
    methods = [*map(_renamed, PLAIN), _attention(session, "attention")]
    if session.dataset.views:
        methods.append(replace(_attention(session, "attention+tta"), takes_views=True))
    return [_job(session, "main", method) for method in methods]


def k_sweep_jobs(session: CorrectedSession) -> list[Job]:
    """Uniform, distance and attention at every k that it can use, fitted again for each."""
    jobs = []
    for k in session.preset.sweep_k:
        methods = [_plain(name, k) for name in ("uniform", "distance")]
        if k <= MOST_NEIGHBORS:
            methods.append(_attention(session, "attention", n_neighbors=k))
        jobs += [_job(session, "k-sweep", method, f"k={k}") for method in methods]
    return jobs


def label_noise_jobs(session: CorrectedSession) -> list[Job]:
    """Wrong labels in all training rows, without a noise model and with one.

    The memory alone is not a case: nothing is trained ahead.
    """
    methods = [*_short_methods(session), _attention(session, NOISE_MODEL, label_noise="auto")]
    grid: list[tuple[float, str]] = list(session.preset.noise_grid)
    for name in human_kinds(session.preset, session.dataset):
        rows = _training_rows(session)
        wrong = human_labels(name, session.dataset, rows, session.data_root)[1]
        grid.append((wrong, _HUMAN + name))
    return [
        _job(session, "label-noise", method, "where=everywhere", rate, kind)
        for rate, kind in grid
        for method in methods
    ]


def long_tail_jobs(session: CorrectedSession) -> list[Job]:
    """Fewer and fewer rows of the later classes, everything fitted again."""
    return [
        _job(session, "long-tail", method, f"ratio={ratio:g}", tail=ratio)
        for ratio in session.preset.tail_ratios
        for method in [
            *_short_methods(session),
            _attention(session, "attention+uniform-prior", class_prior="uniform"),
        ]
    ]


def ablation_jobs(session: CorrectedSession) -> list[Job]:
    """Each part of the method off, one at a time, of those that the fit has."""
    return [
        _job(session, "ablation", _attention(session, "attention", **changes), condition)
        for condition, changes in chosen_ablations(ABLATIONS, session.preset).items()
    ]


def theory_jobs(session: CorrectedSession) -> list[Job]:
    """Error against k and purity in the feature space, and the learned temperature."""
    blanks = tuple(
        session.blank("theory", "attention", condition)
        for condition in ("error-against-k", "collapse", "temperatures")
    )

    def make(missing: Sequence[Record]) -> Iterator[Record]:
        split = _split(session, blanks[0])
        model: Any = _attention(session, "attention")(
            session.seed, len(split.y_train), len(split.classes), session.dataset.kind
        )
        model.fit(split.X_train, split.y_train)
        labels = torch.from_numpy(np.searchsorted(split.classes, split.y_train))
        _, ids = model.kneighbors(split.X_test, n_neighbors=min(CURVE_SIZES[-1], len(labels)))
        findings = classifier_findings(
            labels[ids], torch.from_numpy(split.y_test), len(labels), len(split.classes), model
        )
        for blank in missing:
            yield replace(
                blank,
                n_train=len(split.y_train),
                n_test=len(split.y_test),
                n_classes=len(split.classes),
                details=findings[blank.condition],
            )

    return [Job(f"{session.dataset.name} · v1 · seed {session.seed} · theory", blanks, make)]


EXPERIMENTS: dict[str, Callable[[CorrectedSession], list[Job]]] = {
    "main": main_jobs,
    "k-sweep": k_sweep_jobs,
    "label-noise": label_noise_jobs,
    "long-tail": long_tail_jobs,
    "theory": theory_jobs,
    "ablation": ablation_jobs,
}


def _renamed(name: str) -> Method:
    return replace(METHODS[PLAIN[name]], name=name)


def _plain(name: str, k: int) -> Method:
    weights: Any = name

    def build(context: MethodContext) -> Any:
        units: Any = "columns" if context.kind == "table" else "overall"
        return make_pipeline(FeatureEncoder(units), PlainKNN(k, weights))

    return Method(name, build, "neighbors", f"k = {k}")


def _attention(session: CorrectedSession, name: str, **changes: Any) -> Method:
    def build(context: MethodContext) -> Any:
        settings = {"random_state": context.seed, **session.parameters, **changes}
        asked = settings.get("n_neighbors")
        if isinstance(asked, int):  # a sweep may need more than a fold has
            settings["n_neighbors"] = min(asked, max(1, context.n_train // 2))
        return session.classifier(**settings)

    return Method(name, build, "attention", "AttnKNNClassifier")


def _short_methods(session: CorrectedSession) -> list[Method]:
    names = ("uniform", "distance", "mlp+temperature")
    return [*(_renamed(name) for name in names), _attention(session, "attention")]


def _job(
    session: CorrectedSession,
    experiment: str,
    method: Method,
    condition: str = "",
    noise: float = 0.0,
    noise_kind: str = "symmetric",
    tail: float = 1.0,
) -> Job:
    blank = session.blank(experiment, method.name, condition, float(noise), noise_kind)

    def make(missing: Sequence[Record]) -> Iterator[Record]:
        yield from run_trial(method, _split(session, blank, tail), blank, session.out)

    noisy = f"{noise_kind} {noise:g}" if noise else ""
    parts = (session.dataset.name, "v1", f"seed {session.seed}", experiment, method.name, condition)
    return Job(" · ".join(part for part in (*parts, noisy) if part), (blank,), make)


def _split(session: CorrectedSession, blank: Record, tail: float = 1.0) -> Split:
    """Rows of the seed: split, cut to the small size, thinned to a long tail, made noisy."""
    whole = make_split(session.dataset, session.seed)
    train = _rows(whole.y_train, session.preset.max_rows, session.seed)
    test = _rows(whole.y_test, session.preset.max_test_rows, session.seed)
    if tail < 1:
        kept = long_tail(whole.y_train[train], tail, session.seed, classes=whole.classes)
        train = train[kept]
    y_train = whole.y_train[train]
    if blank.noise_kind.startswith(_HUMAN):
        name, rows = blank.noise_kind.removeprefix(_HUMAN), _training_rows(session)
        y_train = human_labels(name, session.dataset, rows, session.data_root)[0]
    elif blank.noise > 0:
        kind: Any = blank.noise_kind
        y_train = label_noise(y_train, blank.noise, kind, session.seed, classes=whole.classes)
    return replace(
        whole,
        train_views=tuple(view[train] for view in whole.train_views),
        test_views=tuple(view[test] for view in whole.test_views),
        X_train=_take(whole.X_train, train),
        y_train=y_train,
        X_test=_take(whole.X_test, test),
        y_test=whole.y_test[test],
        test_index=whole.test_index[test],
    )


def _training_rows(session: CorrectedSession) -> np.ndarray:
    """Positions in the data set of the training rows that a seed takes."""
    train, _ = split_dataset(session.dataset, session.seed, TEST_SIZE)
    rows: np.ndarray = train[_rows(session.dataset.y[train], session.preset.max_rows, session.seed)]
    return rows


def _rows(y: np.ndarray, n_wanted: int | None, seed: int) -> np.ndarray:
    return stratified_part(y, np.arange(len(y)), n_wanted, seed)


def _take(X: Any, rows: np.ndarray) -> Any:
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]
