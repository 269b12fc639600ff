"""The corrected method on images: AttnKNNClassifier beside its own network and plain neighbors.

The CNN that it is compared with is the network that its memory's keys come from, and the plain
neighbors live in that network's key space: what differs is what is made of them.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from nearwise_lab.corrupt import label_noise, long_tail
from nearwise_lab.experiments.artifacts import keep_json
from nearwise_lab.experiments.runner import Job
from nearwise_lab.experiments.study.corrected_session import (
    ABLATIONS,
    NOISE_MODEL,
    CorrectedSession,
)
from nearwise_lab.experiments.study.evaluate import Prediction
from nearwise_lab.experiments.study.findings import CURVE_SIZES, classifier_findings, classifier_map
from nearwise_lab.experiments.study.human_noise import human_kinds, human_labels
from nearwise_lab.experiments.study.inputs import StudyInputs
from nearwise_lab.experiments.study.jobs import by_method, chosen_ablations, measured, sizes
from nearwise_lab.experiments.study.key_space import PLAIN, network_view
from nearwise_lab.experiments.study.presets import NoiseKind
from nearwise_lab.experiments.study.upper_bound import upper_bound_names
from nearwise_lab.experiments.trial import HALVES, WARM_UP_ROWS, align
from nearwise_lab.records import Record
from nearwise_lab.results.gallery import make_gallery
from nearwise_lab.results.measures import Predictions

NETWORK = upper_bound_names(True)


def main_jobs(session: CorrectedSession) -> list[Job]:
    """CNN, plain neighbors of its keys, and attention, of one view and of more."""
    frame = _Frame(session)
    return [
        frame.beside_network("main"),
        frame.attention("main", "attention+tta", tta=frame.tta),
    ]


def k_sweep_jobs(session: CorrectedSession) -> list[Job]:
    """Uniform and distance in the network's key space, and attention, at every k."""
    frame = _Frame(session)
    return [
        frame.beside_network("k-sweep", f"k={k}", names=("uniform", "distance"), n_neighbors=k)
        for k in session.preset.sweep_k
    ]


def label_noise_jobs(session: CorrectedSession) -> list[Job]:
    """Wrong labels in the memory alone, and in all training and held-out rows.

    In all rows they are drawn or human, everything is trained again, and the classifier is fitted
    without a noise model, with one, and with one and views.
    """
    frame = _Frame(session)
    inputs = session.inputs
    jobs = [_memory_noise_job(frame)]
    for name in human_kinds(session.preset, session.dataset):
        labels, wrong = human_labels(name, session.dataset, inputs.train_index, session.data_root)
        row: dict[str, Any] = {"noise": wrong, "noise_kind": f"human-{name}"}
        jobs += _everywhere(frame, partial(_relabelled, y=labels), row)
    # the highest rates decide the claims, so they come first
    for rate, kind in sorted(session.preset.noise_grid, key=lambda drawn: -drawn[0]):
        row = {"noise": float(rate), "noise_kind": kind}
        change = partial(_noisy, rate=float(rate), kind=kind, seed=session.seed)
        jobs += _everywhere(frame, change, row)
    return jobs


def _everywhere(frame: "_Frame", change: "Change", row: dict[str, Any]) -> list[Job]:
    where = "where=everywhere"
    forms: dict[str, dict[str, Any]] = {
        NOISE_MODEL: {"label_noise": "auto"},
        f"{NOISE_MODEL}+tta": {"label_noise": "auto", "tta": frame.tta},
    }
    return [
        frame.beside_network("label-noise", where, change, row),
        *(
            frame.attention("label-noise", name, where, change, row, **changes)
            for name, changes in forms.items()
        ),
    ]


def _memory_noise_job(frame: "_Frame") -> Job:
    """One classifier fitted to the right labels, whose memory is then given wrong ones."""
    session, where = frame.session, "where=memory"
    names = (*PLAIN, "attention")
    blanks = {
        (rate, kind): {
            name: session.blank("label-noise", name, where, float(rate), kind) for name in names
        }
        for rate, kind in session.preset.noise_grid
    }

    def make(missing: Sequence[Record]) -> Iterator[Record]:
        inputs, keys = session.inputs, {record.key for record in missing}
        model = frame.fit(inputs)
        view = network_view(model, _images(inputs.x_test))
        ids = model.memory_.ids.numpy()
        for (rate, kind), of_case in blanks.items():
            wanted = {name: blank for name, blank in of_case.items() if blank.key in keys}
            if not wanted:
                continue
            noisy = _noisy(inputs, float(rate), kind, session.seed)
            model.relabel(ids, noisy.given_labels[ids])
            space = replace(view.space, memory_labels=noisy.y_train[ids])
            for prediction in space.predictions(wanted):
                yield measured(wanted[prediction.method], prediction, noisy, session.out)
            if "attention" in wanted:
                yield from _measured_parts(session, wanted["attention"], model, noisy, None)

    every = tuple(blank for of_case in blanks.values() for blank in of_case.values())
    return Job(frame.title("label-noise", where), every, make)


def long_tail_jobs(session: CorrectedSession) -> list[Job]:
    """Fewer and fewer rows of the later classes, everything trained again."""
    frame = _Frame(session)
    jobs = []
    for ratio in session.preset.tail_ratios:
        condition = f"ratio={ratio:g}"
        change = partial(_thinned, ratio=ratio, seed=session.seed)
        jobs.append(frame.beside_network("long-tail", condition, change))
        jobs.append(
            frame.attention(
                "long-tail", "attention+uniform-prior", condition, change, class_prior="uniform"
            )
        )
    return jobs


def ablation_jobs(session: CorrectedSession) -> list[Job]:
    """Each part of the method off, one at a time."""
    frame = _Frame(session)
    return [
        frame.attention("ablation", "attention", condition, **changes)
        for condition, changes in chosen_ablations(ABLATIONS, session.preset).items()
    ]


def theory_jobs(session: CorrectedSession) -> list[Job]:
    """Error against k and purity among the neighbors that the classifier finds."""
    frame = _Frame(session)
    conditions = ("error-against-k", "collapse", "temperatures")
    blanks = tuple(session.blank("theory", "attention", c) for c in conditions)

    def make(missing: Sequence[Record]) -> Iterator[Record]:
        inputs = session.inputs
        model = frame.fit(inputs)
        bank = model.memory_
        remembered = bank.labels.argmax(dim=1) if bank.is_soft else bank.labels
        n_asked = min(CURVE_SIZES[-1], len(bank))
        _, ids = model.kneighbors(_images(inputs.x_test), n_neighbors=n_asked)
        labels = remembered[torch.searchsorted(bank.ids, torch.from_numpy(ids))]
        findings = classifier_findings(labels, inputs.y_test, len(bank), inputs.n_classes, model)
        for blank in missing:
            yield replace(blank, **sizes(inputs), details=findings[blank.condition])

    return [Job(frame.title("theory"), blanks, make)]


EXPERIMENTS: dict[str, Callable[[CorrectedSession], list[Job]]] = {
    "main": main_jobs,
    "k-sweep": k_sweep_jobs,
    "label-noise": label_noise_jobs,
    "long-tail": long_tail_jobs,
    "theory": theory_jobs,
    "ablation": ablation_jobs,
}

Change = Callable[[StudyInputs], StudyInputs]


class _Frame:
    """A session's classifiers, and what they are compared with."""

    def __init__(self, session: CorrectedSession) -> None:
        self.session = session

    @property
    def tta(self) -> str:
        """View of test-time augmentation: mirrored images, but a mirrored digit is another one."""
        return "flip" if self.session.inputs.x_train.shape[1] == 3 else "shift"

    def title(self, *parts: str) -> str:
        """Name a job on the progress bar."""
        session = self.session
        start = (session.dataset.name, "v1", f"seed {session.seed}")
        return " · ".join(part for part in (*start, *parts) if part)

    def fit(self, inputs: StudyInputs, **changes: Any) -> Any:
        """Fit AttnKNNClassifier on the training rows."""
        model = self.session.classifier(**{"checkpoint_dir": self.session.networks} | changes)
        return model.fit(_images(inputs.x_train), inputs.given_labels)

    def beside_network(
        self,
        experiment: str,
        condition: str = "",
        change: Change | None = None,
        row: dict[str, Any] | None = None,
        names: Sequence[str] = (*NETWORK, *PLAIN),
        **changes: Any,
    ) -> Job:
        """Fit the classifier; its network and plain neighbors of its keys precede it."""
        return self._job(experiment, "attention", condition, change, row, names, changes)

    def attention(
        self,
        experiment: str,
        name: str,
        condition: str = "",
        change: Change | None = None,
        row: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Job:
        """Fit a form of the classifier; its two halves precede it."""
        return self._job(experiment, name, condition, change, row, (), changes)

    def _job(
        self,
        experiment: str,
        name: str,
        condition: str,
        change: Change | None,
        row: dict[str, Any] | None,
        beside: Sequence[str],
        changes: dict[str, Any],
    ) -> Job:
        session = self.session
        blanks = tuple(
            session.blank(experiment, each, condition, **(row or {})) for each in (*beside, name)
        )

        def make(missing: Sequence[Record]) -> Iterator[Record]:
            inputs = session.inputs if change is None else change(session.inputs)
            wanted = by_method(missing)
            start, trained = time.perf_counter(), self._networks()
            model = self.fit(inputs, **changes)
            # a fit that took over a network does not measure the time of one
            anew = self._networks() > trained
            seconds = time.perf_counter() - start if anew else None
            plain = wanted.keys() - {name}
            if plain:
                view = network_view(model, _images(inputs.x_test))
                k = changes.get("n_neighbors")
                for prediction in view.predictions(inputs.classes, plain, k):
                    yield measured(wanted[prediction.method], prediction, inputs, session.out)
            if name in wanted:
                yield from _measured_parts(session, wanted[name], model, inputs, seconds)

        return Job(self.title(experiment, name, condition), blanks, make)

    def _networks(self) -> int:
        """Count the fits whose networks lie in the folder of checkpoints."""
        return len(list(self.session.networks.glob("*")))


def _noisy(inputs: StudyInputs, rate: float, kind: NoiseKind, seed: int) -> StudyInputs:
    given = label_noise(inputs.given_labels, rate, kind, seed, classes=inputs.classes)
    return _relabelled(inputs, given)


def _relabelled(inputs: StudyInputs, y: np.ndarray) -> StudyInputs:
    return inputs.with_labels(torch.from_numpy(np.searchsorted(inputs.classes, y)))


def _thinned(inputs: StudyInputs, ratio: float, seed: int) -> StudyInputs:
    return inputs.take(long_tail(inputs.given_labels, ratio, seed, classes=inputs.classes))


def _measured_parts(
    session: CorrectedSession,
    blank: Record,
    model: Any,
    inputs: StudyInputs,
    fit_seconds: float | None,
) -> Iterator[Record]:
    model.predict_proba(_images(inputs.x_test[:WARM_UP_ROWS]))
    start = time.perf_counter()
    parts = model.query(_images(inputs.x_test)).parts
    seconds = time.perf_counter() - start
    for half, attribute in HALVES.items():
        given = getattr(parts, attribute)
        if given is None:
            continue
        name = f"{blank.method}:{half}"
        prediction = Prediction(name, align(given, model.classes_, inputs.classes), None, 0.0)
        half_blank = replace(blank, method=name, part_of=blank.method)
        yield measured(half_blank, prediction, inputs, session.out)
    proba = align(parts.proba, model.classes_, inputs.classes)
    record = measured(
        blank, Prediction(blank.method, proba, _asked(model), seconds), inputs, session.out,
        fit_seconds=fit_seconds,
        null_mass=float(np.mean(parts.null_mass)),
        choice=dict(model.report_.choice),
    )  # fmt: skip
    if model.report_.history:
        keep_json(session.out, record, "curves", model.report_.history)
    if record.experiment == "main" and record.method == "attention":
        keep_json(session.out, record, "galleries", _gallery(session, model, inputs, proba))
        drawn = classifier_map(model, _images(inputs.x_test), inputs.y_test, inputs.classes)
        keep_json(session.out, record, "maps", drawn)
    yield record


def _gallery(
    session: CorrectedSession, model: Any, inputs: StudyInputs, proba: np.ndarray
) -> dict[str, Any]:
    """Wrong and uncertain test images as the classifier saw them, with their neighbors."""
    y = inputs.y_test.numpy()
    seen = replace(
        session.dataset, X=_images(inputs.x_test), y=inputs.classes[y], test_index=None,
        strata=None, views={},
    )  # fmt: skip
    predictions = Predictions(y, proba, np.arange(len(y)), [str(c) for c in inputs.classes])
    gallery = make_gallery(model, seen, predictions.test_index, predictions)
    for row in gallery["rows"]:
        row["test_row"] = int(inputs.test_index[row["test_row"]])
    return gallery


def _asked(model: Any) -> int | None:
    k = getattr(model, "n_neighbors", None)
    return int(k) if isinstance(k, int) else None


def _images(tensor: torch.Tensor) -> np.ndarray:
    """Images as the classifier takes them, uint8 (n, h, w, c)."""
    images: np.ndarray = tensor.permute(0, 2, 3, 1).contiguous().numpy()
    return images
