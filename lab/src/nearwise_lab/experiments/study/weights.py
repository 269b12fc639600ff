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
from nearwise_lab.experiments.study.corrected_session import CorrectedSession
from nearwise_lab.experiments.study.evaluate import Prediction
from nearwise_lab.experiments.study.jobs import by_method, measured
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


def weights_jobs(session: CorrectedSession) -> list[Job]:
    """All weightings with the base in the pool, and without a base anywhere."""
    return [_job(session, WITH_BASE), _job(session, WITHOUT_BASE)]


def _job(session: CorrectedSession, condition: str) -> Job:
    has_base = condition == WITH_BASE
    names = (*WEIGHTINGS, *((BASE,) if has_base else ()), CLASSIFIER)
    blanks = tuple(session.blank("weights", name, condition) for name in names)
    title = f"{session.dataset.name} · v1 · seed {session.seed} · weights · {condition}"

    def make(missing: Sequence[Record]) -> Iterator[Record]:
        inputs, wanted = session.inputs, by_method(missing)
        session.say(f"{title} · fit")
        model, exchange, X_test = _fitted(session, has_base)
        for name, blank in wanted.items():
            session.say(f"{title} · {name}")
            if name == CLASSIFIER:
                found = Weighed(model.predict_proba(X_test), {})
            elif name == BASE:
                found = base_alone(exchange)
            else:
                found = weigh(exchange, name, lambda text: session.say(f"{title} · {text}"))
            prediction = Prediction(name, found.proba, exchange.k, 0.0)
            yield measured(blank, prediction, inputs, session.out, details=found.details)

    return Job(title, blanks, make)


def _fitted(session: CorrectedSession, has_base: bool) -> tuple[Any, Exchange, Any]:
    """Fit a classifier, and find the neighbors of rows it has not seen and of the test rows."""
    changes: dict[str, Any] = {} if has_base else {"estimator": None}
    inputs = session.inputs
    train, test = (
        session.dataset.rows(index)[0] for index in (inputs.train_index, inputs.test_index)
    )
    y = inputs.given_labels
    if inputs.is_images:
        if train.shape[3] == 3:  # a mirrored digit is another digit
            changes["tta"] = ("flip",)
        model = session.classifier(**{"checkpoint_dir": session.networks} | changes).fit(train, y)
        return model, _of_held_out(model, test, session.seed), test
    memory, fitted = hold_out(inputs.y_train.numpy(), _HELD_OUT, session.seed)
    model = session.classifier(**changes).fit(_rows(train, memory), y[memory])
    labels = torch.from_numpy(np.searchsorted(model.classes_, y[fitted]))
    exchange = _of_rows(model, _rows(train, fitted), labels, test, session.seed)
    return model, exchange, test


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
