"""The corrected method ("v1"): forms of AttnKNNClassifier, and their baselines.

On images that is the network that its memory's keys come from, and plain neighbors of these keys:
what differs is what is made of them. On columns these are methods of a comparison. There the head
comes trained: what needs another (a k-ensemble, adaptive k, more than 64 neighbors) is left out.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nearwise_lab.experiments.artifacts import keep_json
from nearwise_lab.experiments.methods import METHODS, Method, MethodContext
from nearwise_lab.experiments.places import WEIGHTS
from nearwise_lab.experiments.runner import Job
from nearwise_lab.experiments.study.arms import Case, cases
from nearwise_lab.experiments.study.evaluate import Prediction, measured
from nearwise_lab.experiments.study.findings import (
    CLASSIFIER_FINDINGS,
    classifier_findings,
    classifier_map,
    image_gallery,
)
from nearwise_lab.experiments.study.inputs import StudyInputs
from nearwise_lab.experiments.study.key_space import N_NEIGHBORS, NETWORK, KeySpace, key_space
from nearwise_lab.experiments.study.session import Session
from nearwise_lab.experiments.study.weights import weights_jobs
from nearwise_lab.experiments.trial import HALVES, WARM_UP_ROWS, Split, align, run_trial
from nearwise_lab.records import Record

MOST_NEIGHBORS = 64  # that the trained head may use
_VIEW = "of the data set"  # a mirrored image, but a mirrored digit is another one
_NOISE_MODEL = {"label_noise": "auto"}
# Forms of the classifier in each experiment, with what is changed in them.
FORMS: dict[str, dict[str, dict[str, Any]]] = {
    "main": {"attention": {}, "attention+tta": {"tta": _VIEW}},
    "k-sweep": {"attention": {}},
    "label-noise": {
        "attention": {},
        "attention+noise-model": _NOISE_MODEL,
        "attention+noise-model+tta": {**_NOISE_MODEL, "tta": _VIEW},
    },
    "long-tail": {"attention": {}, "attention+uniform-prior": {"class_prior": "uniform"}},
    "ablation": {"attention": {}},
}
# What stands beside the first form, on images and on columns.
PLAIN = ("uniform", "distance", "distance-tuned")
_OF_TABLES = ("uniform", "distance", "mlp+temperature")
BESIDE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "main": ((*NETWORK, *PLAIN), (*PLAIN, "mlp+temperature")),
    "k-sweep": (("uniform", "distance"), ("uniform", "distance")),
    "label-noise": ((*NETWORK, *PLAIN), _OF_TABLES),
    "long-tail": ((*NETWORK, *PLAIN), _OF_TABLES),
    "ablation": ((), ()),
}
_METHODS = {
    "uniform": "knn-uniform",
    "distance": "knn-distance",
    "distance-tuned": "knn-tuned",
    "mlp+temperature": "mlp",
}


def corrected_jobs(session: Session, experiment: str) -> list[Job]:
    """Jobs of an experiment with the corrected method."""
    if experiment in WEIGHTS:
        return weights_jobs(session, experiment)
    if experiment == "theory":
        return [_theory(session)]
    of_case = _of_images if session.dataset.kind == "images" else _of_columns
    memory = session.dataset.kind == "images" and experiment == "label-noise"
    jobs = [_memory_noise(session)] if memory else []
    for case in cases(session, experiment):
        jobs += of_case(session, experiment, case)
    return jobs


def _theory(session: Session) -> Job:
    """Error against k, and purity, of the classifier's neighbors."""
    blanks = tuple(session.blank("theory", "attention", name) for name in CLASSIFIER_FINDINGS)

    def make(missing: Sequence[Record]) -> Iterator[Record]:
        inputs = session.inputs
        model = session.classifier().fit(inputs.X_train, inputs.given_labels)
        findings = classifier_findings(model, inputs)
        for blank in missing:
            yield replace(blank, **inputs.sizes, details=findings[blank.condition])

    return Job(session.title("theory"), blanks, make)


# --- columns --------------------------------------------------------------------------------------


def _of_columns(session: Session, experiment: str, case: Case) -> list[Job]:
    """Make one job per method, fitted to the rows of the case.

    Wrong labels in the memory alone are not a case: nothing is trained ahead.
    """
    k = case.changes.get("n_neighbors")
    methods = [_plain(name, k) for name in BESIDE[experiment][1]]
    for name, changes in FORMS[experiment].items():
        if "tta" not in changes:
            methods.append(_attention(session, name, changes | case.changes))
        elif experiment == "main" and session.dataset.views:
            methods.append(replace(_attention(session, name, {}), takes_views=True))
    if k is not None and k > MOST_NEIGHBORS:
        methods = methods[:-1]
    return [_trial(session, experiment, case, method) for method in methods]


def _plain(name: str, k: int | None) -> Method:
    method = METHODS[_METHODS[name]]
    if k is None:
        return replace(method, name=name)

    def build(context: MethodContext) -> Any:
        return method.build(context).set_params(plainknn__n_neighbors=k)

    return replace(method, name=name, build=build)


def _attention(session: Session, name: str, changes: dict[str, Any]) -> Method:
    def build(context: MethodContext) -> Any:
        asked = ((session.parameters or {}) | changes).get("n_neighbors")
        if not isinstance(asked, int):
            return session.classifier(**changes)
        most = max(1, context.n_train // 2)  # a sweep may need more than a fold has
        return session.classifier(**changes | {"n_neighbors": min(asked, most)})

    return Method(name, build, "attention", "AttnKNNClassifier")


def _trial(session: Session, experiment: str, case: Case, method: Method) -> Job:
    blank = session.blank(experiment, method.name, case.condition, case.noise, case.noise_kind)

    def make(missing: Sequence[Record]) -> Iterator[Record]:
        inputs, dataset = case.rows(session.inputs), session.dataset
        views = dataset.views.values()
        split = Split(
            dataset, session.seed, inputs.test_index, inputs.X_train, inputs.given_labels,
            inputs.X_test, inputs.y_test.numpy(), inputs.classes,
            tuple(view[inputs.train_index] for view in views),
            tuple(view[inputs.test_index] for view in views),
        )  # fmt: skip
        yield from run_trial(method, split, blank, session.out)

    return Job(session.title(experiment, method.name, case.label), (blank,), make)


# --- images ---------------------------------------------------------------------------------------


def _of_images(session: Session, experiment: str, case: Case) -> list[Job]:
    """Make one job per form of the classifier; the first also measures the baselines."""
    beside, view = (
        BESIDE[experiment][0],
        "flip" if session.inputs.x_train.shape[1] == 3 else "shift",
    )
    jobs = []
    for name, changes in FORMS[experiment].items():
        own = {key: view if value == _VIEW else value for key, value in changes.items()}
        jobs.append(_fit(session, experiment, case, name, own | case.changes, beside))
        beside = ()
    return jobs


def _fit(
    session: Session, experiment: str, case: Case, name: str, changes: dict[str, Any],
    beside: Sequence[str],
) -> Job:  # fmt: skip
    blanks = tuple(
        session.blank(experiment, method, case.condition, case.noise, case.noise_kind)
        for method in (*beside, name)
    )

    def make(missing: Sequence[Record]) -> Iterator[Record]:
        inputs = case.rows(session.inputs)
        start, trained = time.perf_counter(), _count_networks(session)
        model = session.classifier(**changes).fit(inputs.X_train, inputs.given_labels)
        # a fit that took over a network does not measure the time of one
        anew = _count_networks(session) > trained
        seconds = time.perf_counter() - start if anew else None
        plain = [blank for blank in missing if blank.method != name]
        if plain:
            space, k = key_space(model, inputs.X_test), changes.get("n_neighbors", N_NEIGHBORS)
            yield from _beside(session, plain, space, inputs, k)
        if len(plain) < len(missing):
            yield from _measured_parts(session, missing[-1], model, inputs, seconds)

    return Job(session.title(experiment, name, case.label), blanks, make)


def _count_networks(session: Session) -> int:
    """Count the fits with networks in the folder of checkpoints."""
    return len(list(session.networks.glob("*")))


def _memory_noise(session: Session) -> Job:
    """Fit a classifier to right labels, then put wrong labels into its memory."""
    methods = (*PLAIN, "attention")
    drawn = [case for case in cases(session, "label-noise") if "human" not in case.noise_kind]
    blanks = [
        [session.blank("label-noise", m, case.in_memory, case.noise, case.noise_kind)
         for m in methods]
        for case in drawn
    ]  # fmt: skip

    def make(missing: Sequence[Record]) -> Iterator[Record]:
        inputs = session.inputs
        model = session.classifier().fit(inputs.X_train, inputs.given_labels)
        space = key_space(model, inputs.X_test)
        ids = model.memory_.ids.numpy()
        searched = ids[~model.fitted_.predictor.judged.numpy()]
        for case, of_case in zip(drawn, blanks, strict=True):
            wanted = [blank for blank in of_case if blank in missing]
            if not wanted:
                continue
            noisy = case.rows(inputs)
            model.relabel(ids, noisy.given_labels[ids])
            wrong = replace(space, memory_labels=noisy.y_train[searched])
            yield from _beside(session, [b for b in wanted if b.method in PLAIN], wrong, noisy)
            if wanted[-1].method not in PLAIN:
                yield from _measured_parts(session, wanted[-1], model, noisy, None)

    return Job(session.title("label-noise", "where=memory"), sum(map(tuple, blanks), ()), make)


def _beside(
    session: Session, blanks: Sequence[Record], space: KeySpace, inputs: StudyInputs,
    k: int = N_NEIGHBORS,
) -> Iterator[Record]:  # fmt: skip
    """Measure the network, and plain k-NN on its embedding."""
    for blank in blanks:
        if (found := space.predict(blank.method, k)) is not None:
            aligned = replace(found, proba=align(found.proba, space.classes, inputs.classes))
            yield measured(blank, aligned, inputs, session.out)


def _measured_parts(
    session: Session, blank: Record, model: Any, inputs: StudyInputs, fit_seconds: float | None
) -> Iterator[Record]:
    """Measure a classifier; rows of its two halves come first."""
    images = inputs.X_test
    model.predict_proba(images[:WARM_UP_ROWS])
    start = time.perf_counter()
    parts = model.query(images).parts
    seconds = time.perf_counter() - start

    def prediction(name: str, proba: Any, *more: Any) -> Prediction:
        return Prediction(name, align(proba, model.classes_, inputs.classes), *more)

    for half, attribute in HALVES.items():
        if (given := getattr(parts, attribute)) is not None:
            name = f"{blank.method}:{half}"
            named = replace(blank, method=name, part_of=blank.method)
            yield measured(named, prediction(name, given), inputs, session.out)
    asked = model.n_neighbors
    whole = prediction(
        blank.method, parts.proba, asked if isinstance(asked, int) else None, seconds
    )
    record = measured(
        blank, whole, inputs, session.out, fit_seconds=fit_seconds,
        null_mass=float(np.mean(parts.null_mass)), choice=dict(model.report_.choice),
    )  # fmt: skip
    if model.report_.history:
        keep_json(session.out, record, "curves", model.report_.history)
    if record.experiment == "main" and record.method == "attention":
        gallery = image_gallery(model, inputs, whole.proba)
        keep_json(session.out, record, "galleries", gallery)
        keep_json(session.out, record, "maps", classifier_map(model, inputs))
    yield record
