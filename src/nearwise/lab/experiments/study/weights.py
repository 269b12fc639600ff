"""The experiment "weights": learned attention beside other weightings of the same neighbors."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearwise.data import hold_out
from nearwise.lab.experiments.records import Record
from nearwise.lab.experiments.study.corrected_session import CorrectedSession
from nearwise.lab.experiments.study.evaluate import Prediction
from nearwise.lab.experiments.study.jobs import Job, by_method, measured
from nearwise.lab.experiments.study.weightings import (
    WEIGHTINGS,
    Exchange,
    View,
    Weighed,
    Weights,
    base_alone,
    own_weights,
    weigh,
)

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
    changes: dict[str, Any] = {} if has_base else {"base": None}
    inputs = session.inputs
    train, test = (
        session.dataset.rows(index)[0] for index in (inputs.train_index, inputs.test_index)
    )
    y = inputs.given_labels
    if inputs.is_images:
        if train.shape[3] == 3:  # a mirrored digit is another digit
            changes["tta"] = ("flip",)
        # One pool for all weightings; a mixture of base and neighbors has another.
        model = session.classifier(
            **{"pooling": "log-linear", "checkpoint_dir": session.networks} | changes
        ).fit(train, y)
        return model, _of_held_out(model, test, session.seed), test
    memory, fitted = hold_out(inputs.y_train.numpy(), _HELD_OUT, session.seed)
    model = session.classifier(**changes).fit(_rows(train, memory), y[memory])
    labels = torch.from_numpy(np.searchsorted(model.classes_, y[fitted]))
    exchange = _of_rows(model, _rows(train, fitted), labels, test, session.seed)
    return model, exchange, test


def _rows(X: Any, positions: np.ndarray) -> Any:
    return X.iloc[positions] if hasattr(X, "iloc") else X[positions]


def _of_held_out(model: Any, test: Any, seed: int) -> Exchange:
    """Of a classifier that holds rows out: these have heads that have not seen them."""
    predictor = model._predictor
    held = predictor.held
    fitted = [_view(predictor, keyed) for keyed in held.keyed]
    views = [_view(predictor, predictor.row_models(rows)) for rows in _encoded(model, test)]
    own = [_out_of_fold(predictor.heads, held.folds, view, predictor.prior) for view in fitted]
    return _exchange(predictor, (fitted, views), held.labels, own, seed)


def _of_rows(model: Any, X: Any, labels: Tensor, test: Any, seed: int) -> Exchange:
    """Of a classifier that has not seen the rows X."""
    predictor = model._predictor
    fitted, views = (
        [_view(predictor, predictor.row_models(rows)) for rows in _encoded(model, some)]
        for some in (X, test)
    )
    own = [_mean_of_heads(predictor.heads, view, predictor.prior) for view in fitted]
    return _exchange(predictor, (fitted, views), labels, own, seed)


def _encoded(model: Any, X: Any) -> list[Any]:
    views: list[Any] = model._encoded(model._fitted, X)
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
    of_test = [_mean_of_heads(predictor.heads, view, predictor.prior) for view in views[1]]
    return Exchange(*views, labels, predictor.prior, memory, (own, of_test), seed)


def _view(predictor: Any, keyed: Any) -> View:
    keyed = keyed.cpu()
    seen = predictor.retrieval(keyed)
    names = [spec.name for spec in predictor.views.specs if spec.name in keyed.keys]
    return View(
        seen.spaces,
        [found.indices for found in seen.found],
        [keyed.keys[name] for name in names],
        torch.log_softmax(seen.base_log_proba, dim=1) if predictor.has_base else None,
    )


def _mean_of_heads(heads: Sequence[Any], view: View, prior: Tensor) -> Weights:
    each = [_weights_of(head, view, prior) for head in heads]
    return [torch.stack(of_space).mean(0) for of_space in zip(*each, strict=True)]


def _out_of_fold(heads: Sequence[Any], folds: Tensor, view: View, prior: Tensor) -> Weights:
    found = [torch.zeros_like(space.distances) for space in view.spaces]
    for number, head in enumerate(heads):
        rows = torch.nonzero(folds == number)[:, 0]
        for kept, weight in zip(found, _weights_of(head, view.take(rows), prior), strict=True):
            kept[rows] = weight
    return found


def _weights_of(head: Any, view: View, prior: Tensor) -> Weights:
    base = view.base_log_proba
    n_rows = len(view.positions[0])
    return own_weights(head, view.spaces, prior.log().expand(n_rows, -1) if base is None else base)
