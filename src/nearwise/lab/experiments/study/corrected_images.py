"""The corrected method on images: AttnKNNClassifier beside the CNN and plain neighbors of its keys.

Training and test rows are those of the CNN; each of the two holds out rows of its own among the
training rows. The plain neighbors live in the CNN's key space.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from nearwise.lab.corrupt import label_noise, long_tail
from nearwise.lab.experiments.records import Record
from nearwise.lab.experiments.study.corrected_session import ABLATIONS, CorrectedSession
from nearwise.lab.experiments.study.evaluate import Prediction
from nearwise.lab.experiments.study.findings import (
    CURVE_SIZES,
    classifier_findings,
    classifier_map,
)
from nearwise.lab.experiments.study.human_noise import human_kinds, human_labels
from nearwise.lab.experiments.study.inputs import StudyInputs
from nearwise.lab.experiments.study.jobs import (
    Job,
    by_method,
    chosen_ablations,
    keep_json,
    measured,
    sizes,
)
from nearwise.lab.experiments.study.key_space import KeySpace, cnn_keys
from nearwise.lab.experiments.study.presets import NoiseKind
from nearwise.lab.experiments.study.upper_bound import upper_bound_names
from nearwise.lab.experiments.trial import HALVES, WARM_UP_ROWS, align
from nearwise.lab.results.gallery import make_gallery
from nearwise.lab.results.measures import Predictions

KEY_METHODS = ("uniform", "distance", "distance-tuned")
# Images always have a trained space.
IMAGE_ABLATIONS = {name: off for name, off in ABLATIONS.items() if "embedder" not in off}


def main_jobs(session: CorrectedSession) -> list[Job]:
    """CNN, plain neighbors of its keys, and attention: one view, views, k-ensemble, adaptive."""
    frame = _Frame(session)
    # a mirrored digit is another digit
    tta = ("flip", "shift") if session.inputs.x_train.shape[1] == 3 else ("shift",)
    forms: dict[str, dict[str, Any]] = {
        "attention": {},
        "attention+tta": {"tta": tta},
        "attention+k-ensemble": session.head(k_ensemble=session.preset.ensemble_k),
        "attention+adaptive-k": session.head(adaptive_k="entropy"),
    }
    return [
        frame.cnn("main"),
        *(frame.attention("main", name, **changes) for name, changes in forms.items()),
    ]


def k_sweep_jobs(session: CorrectedSession) -> list[Job]:
    """Uniform and distance in the CNN's key space, and attention, at every k."""
    frame = _Frame(session)
    jobs = []
    for k in session.preset.sweep_k:
        jobs.append(frame.plain("k-sweep", k))
        jobs.append(frame.attention("k-sweep", "attention", f"k={k}", n_neighbors=k))
    return jobs


def label_noise_jobs(session: CorrectedSession) -> list[Job]:
    """Wrong labels in all training and held-out rows, drawn or human; everything trained anew."""
    frame = _Frame(session)
    jobs = []
    for rate, kind in session.preset.noise_grid:
        row: dict[str, Any] = {"noise": float(rate), "noise_kind": kind}
        change = partial(_noisy, rate=float(rate), kind=kind, seed=session.seed)
        jobs += frame.pair("label-noise", "where=everywhere", change, row)
    for name in human_kinds(session.preset, session.dataset):
        inputs = session.inputs
        labels, wrong = human_labels(name, session.dataset, inputs.train_index, session.data_root)
        row = {"noise": wrong, "noise_kind": f"human-{name}"}
        jobs += frame.pair("label-noise", "where=everywhere", partial(_relabelled, y=labels), row)
    return jobs


def long_tail_jobs(session: CorrectedSession) -> list[Job]:
    """Fewer and fewer rows of the later classes, everything trained anew."""
    frame = _Frame(session)
    jobs = []
    for ratio in session.preset.tail_ratios:
        condition = f"ratio={ratio:g}"
        change = partial(_thinned, ratio=ratio, seed=session.seed)
        jobs += frame.pair("long-tail", condition, change)
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
        for condition, changes in chosen_ablations(IMAGE_ABLATIONS, session.preset).items()
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
    """A session's CNN and classifiers."""

    def __init__(self, session: CorrectedSession) -> None:
        self.session = session
        self._space: KeySpace | None = None

    def title(self, *parts: str) -> str:
        """Name a job on the progress bar."""
        session = self.session
        start = (session.dataset.name, "v1", f"seed {session.seed}")
        return " · ".join(part for part in (*start, *parts) if part)

    def fit(self, inputs: StudyInputs, **changes: Any) -> Any:
        """Fit AttnKNNClassifier on the training rows."""
        session, preset = self.session, self.session.preset
        settings: dict[str, Any] = {
            "embedder": preset.backbone,
            "embedder_options": {"dim": preset.dim, "pretrained": preset.pretrained},
            "train": {"epochs": preset.cnn_epochs},  # as many as the CNN
            # forms that differ in views or heads alone share one trained network
            "checkpoint_dir": session.out / "checkpoints" / "attention",
            **session.parameters, **changes,
        }  # fmt: skip
        model = session.classifier(**settings)
        return model.fit(_images(inputs.x_train), inputs.given_labels)

    def cnn(
        self,
        experiment: str,
        condition: str = "",
        change: Change | None = None,
        row: dict[str, Any] | None = None,
    ) -> Job:
        """CNN, CNN + temperature, and plain neighbors in the CNN's key space."""
        names = (*upper_bound_names(True), *KEY_METHODS)
        blanks = tuple(
            self.session.blank(experiment, name, condition, **(row or {})) for name in names
        )

        def make(missing: Sequence[Record]) -> Iterator[Record]:
            inputs = self.session.inputs if change is None else change(self.session.inputs)
            wanted = by_method(missing)
            bound = self.session.upper_bound(inputs)
            space = cnn_keys(bound, self.session.device, self.session.preset.precision)
            for prediction in [*bound.predictions, *space.predictions()]:
                if prediction.method in wanted:
                    blank = wanted[prediction.method]
                    record = measured(
                        blank, prediction, inputs, self.session.out, fit_seconds=bound.seconds
                    )
                    if prediction.method == names[0]:
                        keep_json(self.session.out, record, "curves", bound.history)
                    yield record

        return Job(self.title(experiment, "cnn", condition), blanks, make)

    def plain(self, experiment: str, k: int) -> Job:
        """Uniform and distance weighting in the CNN's key space at one k."""
        names = ("uniform", "distance")
        blanks = tuple(self.session.blank(experiment, name, f"k={k}") for name in names)

        def make(missing: Sequence[Record]) -> Iterator[Record]:
            wanted = by_method(missing)
            if self._space is None:
                bound = self.session.upper_bound(self.session.inputs)
                self._space = cnn_keys(bound, self.session.device, self.session.preset.precision)
            for prediction in self._space.plain(k):
                if prediction.method in wanted:
                    blank = wanted[prediction.method]
                    yield measured(blank, prediction, self.session.inputs, self.session.out)

        return Job(self.title(experiment, f"k={k}"), blanks, make)

    def attention(
        self,
        experiment: str,
        name: str,
        condition: str = "",
        change: Change | None = None,
        row: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Job:
        """Fit the classifier; its two halves stand before it."""
        blank = self.session.blank(experiment, name, condition, **(row or {}))

        def make(missing: Sequence[Record]) -> Iterator[Record]:
            inputs = self.session.inputs if change is None else change(self.session.inputs)
            start, trained = time.perf_counter(), self._networks()
            model = self.fit(inputs, **changes)
            # a fit that took over a network says nothing about the time of one
            anew = self._networks() > trained
            seconds = time.perf_counter() - start if anew else None
            yield from _measured_parts(self.session, blank, model, inputs, seconds)

        return Job(self.title(experiment, name, condition), (blank,), make)

    def _networks(self) -> int:
        """Count the fits whose networks lie in the folder of checkpoints."""
        return len(list((self.session.out / "checkpoints" / "attention").glob("*")))

    def pair(
        self, experiment: str, condition: str, change: Change, row: dict[str, Any] | None = None
    ) -> list[Job]:
        """CNN with its neighbors, and attention, on changed rows."""
        return [
            self.cnn(experiment, condition, change, row),
            self.attention(experiment, "attention", condition, change, row),
        ]


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
    model.predict_parts(_images(inputs.x_test[:WARM_UP_ROWS]))
    start = time.perf_counter()
    parts = model.predict_parts(_images(inputs.x_test))
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
        choice=dict(getattr(model, "choice_", {})),
    )  # fmt: skip
    if getattr(model, "history_", None):
        keep_json(session.out, record, "curves", model.history_)
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
