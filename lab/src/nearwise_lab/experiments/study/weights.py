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
from nearwise_lab.experiments.study.session import Session
from nearwise_lab.experiments.study.weightings import (
    WEIGHTINGS,
    Exchange,
    View,
    Weighed,
    Weights,
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
        model, exchange = _fitted(session, has_base)
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


def _fitted(session: Session, has_base: bool) -> tuple[Any, Exchange]:
    """Fit a classifier, and find the neighbors of rows it has not seen and of the test rows."""
    changes: dict[str, Any] = {} if has_base else {"estimator": None}
    inputs, seed = session.inputs, session.seed
    X, y = inputs.X_train, inputs.given_labels
    if inputs.is_images:
        if X.shape[3] == 3:  # a mirrored digit is another digit
            changes["tta"] = ("flip",)
        model = session.classifier(**changes).fit(X, y)
        return model, _of_held_out(model, inputs.X_test, seed)
    memory, fitted = hold_out(inputs.y_train.numpy(), _HELD_OUT, seed)
    model = session.classifier(**changes).fit(_rows(X, memory), y[memory])
    labels = torch.from_numpy(np.searchsorted(model.classes_, y[fitted]))
    return model, _of_rows(model, _rows(X, fitted), labels, inputs.X_test, seed)


def _rows(X: Any, positions: np.ndarray) -> Any:
    return X.iloc[positions] if hasattr(X, "iloc") else X[positions]


def _of_held_out(model: Any, test: Any, seed: int) -> Exchange:
    """Of a classifier that holds rows out, which are remembered and left out of their neighbors."""
    predictor = model.fitted_.predictor
    views, bank = predictor.judged_views, predictor.views.bank
    positions = torch.nonzero(predictor.judged)[:, 0]
    keyed = [_known(predictor, positions)] if views is None else views.keyed
    fitted = [_view(predictor, one, positions) for one in keyed]
    of_test = [_view(predictor, predictor.row_models(rows)) for rows in _encoded(model, test)]
    own = [own_weights(predictor.head, view.spaces) for view in fitted]
    return _exchange(predictor, (fitted, of_test), bank.labels[positions], own, seed)


def _known(predictor: Any, positions: Tensor) -> KeyedRows:
    bank = predictor.views.bank
    base = bank.columns[memory_views.BASE][positions] if predictor.has_base else None
    return KeyedRows({name: keys[positions] for name, keys in bank.keys.items()}, base)


def _of_rows(model: Any, X: Any, labels: Tensor, test: Any, seed: int) -> Exchange:
    """Of a classifier that has not seen the rows X."""
    predictor = model.fitted_.predictor
    fitted, views = (
        [_view(predictor, predictor.row_models(rows)) for rows in _encoded(model, some)]
        for some in (X, test)
    )
    own = [own_weights(predictor.head, view.spaces) for view in fitted]
    return _exchange(predictor, (fitted, views), labels, own, seed)


def _encoded(model: Any, X: Any) -> list[Any]:
    views: list[Any] = model.fitted_.encoded(X)
    return views


def _exchange(
    predictor: Any,
    views: tuple[list[View], list[View]],
    labels: Tensor,
    own: list[Weights],
    seed: int,
) -> Exchange:
    bank, n_spaces = predictor.views.bank, len(views[0][0].spaces)
    memory = [bank.keys[spec.name] for spec in predictor.views.specs][:n_spaces]
    of_test = [own_weights(predictor.head, view.spaces) for view in views[1]]
    return Exchange(*views, labels, predictor.prior, memory, (own, of_test), seed)


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
