"""Changes of a fitted regressor: adding rows and replacing targets.

Every function returns a new model; the given model stays unchanged, also after an error.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearwise.estimators.inputs.rows import AnyRows
from nearwise.estimators.inputs.targets import check_targets
from nearwise.estimators.model.fitted_model import FittedRegressor
from nearwise.estimators.model.number_memory import TARGET, TRUST
from nearwise.estimators.model.predictor import as_float
from nearwise.estimators.model.wrong_targets import find_wrong
from nearwise.estimators.number_query import NumberQuery
from nearwise.estimators.online.changes import Bound, NewRows, bounded, with_given


def with_rows(model: FittedRegressor, new: NewRows, bound: Bound) -> tuple[FittedRegressor, Tensor]:
    """Add rows and evict rows beyond the capacity; returns the model and the new ids."""
    n_rows = len(new.given)
    targets = check_targets(new.y, n_rows)
    fork = model.fork()
    keys, columns = fork.predictor.keys_of_new(new.views)
    columns |= new.groups | {TARGET: torch.from_numpy(targets)}
    if TRUST in model.bank.columns:
        columns[TRUST] = _trust(model, new.views[0], targets)
    weight = None if new.weight is None else as_float(new.weight / model.weight_unit)
    nothing = torch.zeros(n_rows, dtype=torch.int64)
    ids = fork.predictor.views.add_rows(keys, columns, nothing, weight, 1)
    return bounded(with_given(fork, new).settled(), bound), ids


def _trust(model: FittedRegressor, encoded: AnyRows, targets: np.ndarray) -> Tensor:
    """Probabilities (n,) that new targets are right, at the noise rate of the fit."""
    rate = model.predictor.choice["label_noise"]["rate"]
    predicted = NumberQuery(model, encoded).mixture
    found = find_wrong(predicted, targets, np.ones(len(targets)), rate, model.numbers)
    return torch.from_numpy(1 - found.posterior)


def with_targets(model: FittedRegressor, ids: Any, y: Any) -> FittedRegressor:
    """Replace the targets of remembered rows."""
    fork = model.fork()
    at = fork.predictor.views.hold(ids)
    targets = check_targets(y, len(at))
    fork.predictor.views.relabel_rows(ids, torch.from_numpy(targets))
    return fork.settled()
