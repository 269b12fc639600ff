"""The experiments "weights": learned attention and other weightings of the same neighbors.

On labels and rows as they are; with wrong labels, in the memory alone and in all rows; and with a
long tail. What is done about wrong labels or rare classes is done for every weighting alike.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearwise.data import hold_out
from nearwise.estimators.model import memory_views
from nearwise.estimators.model.row_models import KeyedRows
from nearwise_lab.corrupt import label_noise
from nearwise_lab.experiments.places import CLEAN, NOISE, TAIL
from nearwise_lab.experiments.runner import Job
from nearwise_lab.experiments.study.arms import Case, cases
from nearwise_lab.experiments.study.evaluate import Prediction, measured
from nearwise_lab.experiments.study.inputs import StudyInputs
from nearwise_lab.experiments.study.session import Session
from nearwise_lab.experiments.study.weightings import (
    WEIGHTINGS,
    Exchange,
    View,
    Weighed,
    base_alone,
    own_weights,
    weigh,
)
from nearwise_lab.experiments.trial import align
from nearwise_lab.records import Record

BASE, CLASSIFIER = "base", "classifier"
WITH_BASE, WITHOUT_BASE = "with=base", "without=base"
MEMORY, EVERYWHERE = "memory", "everywhere"
AS_GIVEN, CORRECTED = "as-given", "corrected"
GIVEN = "given-labels"
"""What test rows are judged by: labels with the same noise as those of the training rows."""
_HELD_OUT = {True: 0.1, False: 0.2}  # of the training rows of images, and of other data
Key = tuple[str, float, str]  # condition, noise and noise_kind of a record


@dataclass(frozen=True)
class _Fit:
    """A fitted classifier, held-out rows with their given labels, and the test rows.

    `memory` are the positions of its own rows among the training rows.
    """

    model: Any
    inputs: StudyInputs
    memory: np.ndarray
    held_out: Any
    labels: Tensor

    def exchange(self) -> Exchange:
        """Find the neighbors of the held-out and test rows in the present memory."""
        fitted, test = (_views(self.model, some) for some in (self.held_out, self.inputs.X_test))
        predictor = self.model.fitted_.predictor
        keys = [predictor.views.bank.keys[spec.name] for spec in predictor.views.specs]
        own, of_test = (
            [own_weights(predictor.head, view.spaces) for view in views] for views in (fitted, test)
        )
        return Exchange(
            fitted, test, self.labels, predictor.prior, keys, (own, of_test), self.inputs.seed,
            _learned(predictor), predictor.label_model,
        )  # fmt: skip


@dataclass(frozen=True)
class _Measured:
    """Model, neighbors and targets of one condition.

    Predictions are corrected to the class shares `target` (C,), and judged by the labels `given`
    (n_test,) in place of the right ones; None leaves both as they are.
    """

    key: Key
    fit: _Fit
    exchange: Exchange
    target: Tensor | None = None
    given: Tensor | None = None

    def predict(self, method: str, progress: Callable[[str], None]) -> Weighed:
        """Predict the test rows with one of the weightings, the base, or the classifier."""
        if method == CLASSIFIER:
            found = Weighed(self.fit.model.predict_proba(self.fit.inputs.X_test), {})
        elif method == BASE:
            found = base_alone(self.exchange)
        else:
            found = weigh(self.exchange, method, progress)
        if self.target is None:
            return found
        proba = found.proba * (self.target / self.exchange.prior).numpy()
        return Weighed(proba / proba.sum(axis=1, keepdims=True), found.details)


def weights_jobs(session: Session, experiment: str) -> list[Job]:
    """Make the jobs of an experiment: with the base in the pool, and without a base anywhere."""
    jobs = []
    for base in (WITH_BASE, WITHOUT_BASE):
        if experiment == CLEAN:
            jobs.append(_clean(session, base))
        elif experiment == TAIL:
            thinned = (case for case in cases(session, "long-tail") if case.condition != "ratio=1")
            jobs += [_tail(session, base, case) for case in thinned]
        else:
            noisy = [case for case in cases(session, "label-noise") if case.noise]
            if len(session.dataset.classes) == 2:  # the next class is the only other one
                noisy = [case for case in noisy if case.noise_kind != "asymmetric"]
            jobs.append(_in_memory(session, base, noisy))
            for case in noisy:
                jobs += [_everywhere(session, base, case, how) for how in (AS_GIVEN, CORRECTED)]
    return jobs


# --- what is wrong, and what is done about it -----------------------------------------------------


def _clean(session: Session, base: str) -> Job:
    key = (base, 0.0, "symmetric")

    def make() -> Iterator[_Measured]:
        fit = _fitted(session, session.inputs, base)
        yield _Measured(key, fit, fit.exchange())

    return _job(session, CLEAN, base, [key], make)


def _in_memory(session: Session, base: str, noisy: list[Case]) -> Job:
    """Fit a classifier to right labels, then put wrong ones into its memory.

    As given, all else was fitted before these came; corrected, anew, to rows held out with right
    labels.
    """

    def key(case: Case, how: str) -> Key:
        return f"{MEMORY}; {how}; {base}", case.noise, case.noise_kind

    def make() -> Iterator[_Measured]:
        fit = _fitted(session, session.inputs, base)
        before, ids = fit.exchange(), fit.model.memory_.ids.numpy()
        for case in noisy:
            fit.model.relabel(ids, case.rows(session.inputs).given_labels[fit.memory][ids])
            after = fit.exchange()
            unaware = replace(before, test=after.test, own=(before.own[0], after.own[1]))
            yield _Measured(key(case, AS_GIVEN), fit, unaware)
            yield _Measured(key(case, CORRECTED), fit, after)

    keys = [key(case, how) for case in noisy for how in (AS_GIVEN, CORRECTED)]
    return _job(session, NOISE, f"{MEMORY} · {base}", keys, make)


def _everywhere(session: Session, base: str, case: Case, how: str) -> Job:
    """Fit to wrong labels in all rows, with or without a noise model.

    Drawn noise has its own transition in the model, so that what is compared is the weights and
    not how the transition is estimated; that of people's labels is estimated.
    """
    drawn = not case.noise_kind.startswith("human")
    name = f"{EVERYWHERE}; {how}; {base}"
    names = [name, f"{name}; {GIVEN}"] if drawn and how == AS_GIVEN else [name]
    keys = [(one, case.noise, case.noise_kind) for one in names]

    def make() -> Iterator[_Measured]:
        inputs = case.rows(session.inputs)
        known = _transition(case, inputs) if drawn else "auto"
        fit = _fitted(session, inputs, base, **({"label_noise": known} if how == CORRECTED else {}))
        exchange = fit.exchange()
        yield _Measured(keys[0], fit, exchange)
        for key in keys[1:]:
            noise: Any = case.noise, case.noise_kind, session.seed + 1
            wrong = label_noise(inputs.y_test, *noise, classes=np.arange(inputs.n_classes))
            yield _Measured(key, fit, exchange, given=torch.from_numpy(wrong))

    return _job(session, NOISE, f"{case.label} · {how} · {base}", keys, make)


def _transition(case: Case, noisy: StudyInputs) -> np.ndarray:
    """Transition probabilities from right (rows) to given labels (columns), as in `label_noise`."""
    right = np.eye(noisy.n_classes)
    wrong = np.roll(right, 1, axis=1)
    if case.noise_kind == "symmetric":
        wrong = (1 - right) / (len(right) - 1)
    there = noisy.y_train.unique().numpy()
    matrix = ((1 - case.noise) * right + case.noise * wrong)[np.ix_(there, there)]
    shares: np.ndarray = matrix / matrix.sum(axis=1, keepdims=True)
    return shares


def _tail(session: Session, base: str, case: Case) -> Job:
    """Measure a long-tailed fit, plain and with the class prior of all training rows."""
    keys = [(f"{case.condition}; {how}; {base}", 0.0, "symmetric") for how in (AS_GIVEN, CORRECTED)]

    def make() -> Iterator[_Measured]:
        fit = _fitted(session, case.rows(session.inputs), base)
        exchange, whole = fit.exchange(), session.inputs.given_labels
        shares = torch.tensor([(whole == name).mean() for name in fit.model.classes_])
        yield _Measured(keys[0], fit, exchange)
        yield _Measured(keys[1], fit, exchange, shares / shares.sum())

    return _job(session, TAIL, f"{case.condition} · {base}", keys, make)


# --- one fit, all weightings ----------------------------------------------------------------------


def _job(
    session: Session,
    experiment: str,
    what: str,
    keys: Sequence[Key],
    conditions: Callable[[], Iterator[_Measured]],
) -> Job:
    wanted = []
    for key in keys:
        beside = (BASE, CLASSIFIER) if WITH_BASE in key[0] else (CLASSIFIER,)
        wanted += [session.blank(experiment, name, *key) for name in (*WEIGHTINGS, *beside)]

    def say(step: str) -> None:
        session.say(session.title(experiment, what, step))

    def make(missing: Sequence[Record]) -> Iterator[Record]:
        say("fit")
        for one in conditions():
            inputs = one.fit.inputs
            if one.given is not None:
                inputs = replace(inputs, y_test=one.given)
            for blank in missing:
                if (blank.condition, blank.noise, blank.noise_kind) != one.key:
                    continue
                say(blank.method)
                found = one.predict(blank.method, say)
                proba = align(found.proba, one.fit.model.classes_, inputs.classes)
                answer = Prediction(blank.method, proba, one.exchange.k)
                yield measured(blank, answer, inputs, session.out, details=found.details)

    return Job(session.title(experiment, what), tuple(wanted), make)


def _fitted(session: Session, inputs: StudyInputs, base: str, **changes: Any) -> _Fit:
    """Fit a classifier to all training rows except a hold-out part."""
    if base == WITHOUT_BASE:
        changes["estimator"] = None
    X, y = inputs.X_train, inputs.given_labels
    if inputs.is_images and X.shape[3] == 3:  # a mirrored digit is another digit
        changes["tta"] = ("flip",)
    memory, others = hold_out(inputs.y_train.numpy(), _HELD_OUT[inputs.is_images], session.seed)
    model = session.classifier(**changes).fit(_rows(X, memory), y[memory])
    labels = torch.from_numpy(np.searchsorted(model.classes_, y[others]))
    return _Fit(model, inputs, memory, _rows(X, others), labels)


def _rows(X: Any, positions: np.ndarray) -> Any:
    return X.iloc[positions] if hasattr(X, "iloc") else X[positions]


def _views(model: Any, X: Any) -> list[View]:
    """Neighbors of rows outside the classifier's training part."""
    predictor = model.fitted_.predictor
    return [_view(predictor, predictor.row_models(rows)) for rows in model.fitted_.encoded(X)]


def _learned(predictor: Any) -> tuple[list[View], Tensor] | None:
    """Leave-one-out neighbors of the head's training rows, and their given labels."""
    is_trained = any(spec.name == memory_views.TRAINED for spec in predictor.views.specs)
    if is_trained and not predictor.row_models.judges_trained:
        return None
    views, bank = predictor.judged_views, predictor.views.bank
    positions = torch.nonzero(predictor.judged)[:, 0]
    if views is not None:
        keyed = views.keyed
    else:
        base = bank.columns[memory_views.BASE][positions] if predictor.has_base else None
        keys = {name: keys[positions] for name, keys in bank.keys.items()}
        keyed = [KeyedRows(keys, base)]
    return [_view(predictor, one, positions) for one in keyed], bank.labels[positions]


def _view(predictor: Any, keyed: Any, positions: Tensor | None = None) -> View:
    keyed = keyed.cpu()
    seen = predictor.retrieval(keyed, positions)
    names = [spec.name for spec in predictor.views.specs if spec.name in keyed.keys]
    return View(
        seen.spaces,
        [found.indices for found in seen.found],
        [keyed.keys[name] for name in names],
        torch.log_softmax(seen.base_log_proba, dim=1) if predictor.has_base else None,
    )
