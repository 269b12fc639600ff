"""The experiment "weights": learned attention beside other weightings of the same neighbors."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearwise.classifier.model import memory_views
from nearwise.classifier.model.row_models import KeyedRows
from nearwise.data import hold_out
from nearwise_lab.experiments.runner import Job
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
from nearwise_lab.records import Record

BASE, CLASSIFIER = "base", "classifier"
WITH_BASE, WITHOUT_BASE = "with=base", "without=base"
_HELD_OUT = 0.2  # of a table's training rows, which the pool is fitted to


def weights_jobs(session: Session) -> list[Job]:
    """All weightings with the base in the pool, and without a base anywhere."""
    return [_job(session, WITH_BASE), _job(session, WITHOUT_BASE)]


def _job(session: Session, condition: str) -> Job:
    has_base = condition == WITH_BASE
    names = (*WEIGHTINGS, *((BASE,) if has_base else ()), CLASSIFIER)
    blanks = tuple(session.blank("weights", name, condition) for name in names)

    def say(what: str) -> None:
        session.say(session.title("weights", condition, what))

    def make(missing: Sequence[Record]) -> Iterator[Record]:
        say("fit")
        model, exchange = _fitted(session, session.inputs, has_base)
        for blank in missing:
            name = blank.method
            say(name)
            if name == CLASSIFIER:
                found = Weighed(model.predict_proba(session.inputs.X_test), {})
            elif name == BASE:
                found = base_alone(exchange)
            else:
                found = weigh(exchange, name, say)
            prediction = Prediction(name, found.proba, exchange.k)
            yield measured(blank, prediction, session.inputs, session.out, details=found.details)

    return Job(session.title("weights", condition), blanks, make)


def _fitted(session: Session, inputs: StudyInputs, has_base: bool) -> tuple[Any, Exchange]:
    """Fit a classifier, and find the neighbors of rows it has not seen and of the test rows."""
    changes: dict[str, Any] = {} if has_base else {"estimator": None}
    X, y = inputs.X_train, inputs.given_labels
    if inputs.is_images:
        if X.shape[3] == 3:  # a mirrored digit is another digit
            changes["tta"] = ("flip",)
        model = session.classifier(**changes).fit(X, y)
        fitted, labels = _held_out_views(model.fitted_.predictor)
    else:
        memory, others = hold_out(inputs.y_train.numpy(), _HELD_OUT, session.seed)
        model = session.classifier(**changes).fit(_rows(X, memory), y[memory])
        fitted = _views(model, _rows(X, others))
        labels = torch.from_numpy(np.searchsorted(model.classes_, y[others]))
    return model, _exchange(model, fitted, labels, inputs.X_test, session.seed)


def _rows(X: Any, positions: np.ndarray) -> Any:
    return X.iloc[positions] if hasattr(X, "iloc") else X[positions]


def _exchange(model: Any, fitted: list[View], labels: Tensor, test: Any, seed: int) -> Exchange:
    predictor, of_test = model.fitted_.predictor, _views(model, test)
    own = [
        [own_weights(predictor.head, view.spaces) for view in views] for views in (fitted, of_test)
    ]
    bank, n_spaces = predictor.views.bank, len(fitted[0].spaces)
    memory = [bank.keys[spec.name] for spec in predictor.views.specs][:n_spaces]
    return Exchange(fitted, of_test, labels, predictor.prior, memory, (own[0], own[1]), seed)


def _views(model: Any, X: Any) -> list[View]:
    """Give the views of rows that the classifier has not seen."""
    predictor = model.fitted_.predictor
    return [_view(predictor, predictor.row_models(rows)) for rows in model.fitted_.encoded(X)]


def _held_out_views(predictor: Any) -> tuple[list[View], Tensor]:
    """Give views and labels of rows held out: remembered, and left out of their neighbors."""
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
