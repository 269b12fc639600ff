"""Explanation of one remembered row by its neighbors, as predicted without it."""

from dataclasses import replace

from nearwise.estimators.model.fitted_model import FittedClassifier, FittedModel, FittedRegressor
from nearwise.estimators.uncertainty import number_explain
from nearwise.estimators.uncertainty.explain import (
    Explanation,
    explained,
    make_parts,
    remembered_reasons,
)
from nearwise.estimators.uncertainty.number_explain import NumberExplanation
from nearwise.functional.threads import one_thread


def explain_left_out(
    model: FittedModel, row: int, n_neighbors: int
) -> Explanation | NumberExplanation:
    """Explain the leave-one-out prediction of the remembered row with an id.

    UnknownIdError if it is not remembered; ValueError if the memory is in a store.
    """
    model = model.for_query(remembered=True)
    position = model.bank.positions([row])
    source = model.rows_at(position.tolist()), 0
    with one_thread(torch_only=True):
        if isinstance(model, FittedRegressor):
            keys = model.bank.keys["features"][position]
            retrieved = model.predictor.retrieve_remembered(position)
            known = number_explain.explained(model, keys, retrieved, None, 0.9, n_neighbors)
            return replace(known[0], source=source)
        assert isinstance(model, FittedClassifier)
        predictor, n_classes = model.predictor, model.n_classes
        calibration = predictor.calibration()
        answer = calibration.corrected(predictor.predict_left_out(n_classes, position))
        reasons = remembered_reasons(predictor, n_neighbors, n_classes, position)
        parts = make_parts(answer, calibration)
        of_model = model.remembered, model.target_name
        (found,) = explained(predictor, reasons, parts, model.classes, *of_model)
    return replace(found, source=source)
