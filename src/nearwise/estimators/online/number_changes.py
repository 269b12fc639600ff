"""Changes to a fitted regressor: rows come, go or get another target.

Every function takes a model and gives a new one; the model it was given stays as it is, whatever
happens on the way.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearwise.estimators.inputs.labels import check_weight
from nearwise.estimators.inputs.rows import AnyRows, Rows, Source
from nearwise.estimators.inputs.targets import check_targets
from nearwise.estimators.model.fitted_model import FittedRegressor
from nearwise.estimators.model.number_memory import TARGET, TRUST
from nearwise.estimators.model.predictor import as_float
from nearwise.estimators.model.wrong_targets import find_wrong
from nearwise.estimators.number_query import NumberQuery
from nearwise.estimators.online.changes import Bound, NewRows, bounded, groups_of_new, with_given
from nearwise.functional.threads import one_thread


@one_thread()
def with_rows(
    model: FittedRegressor, source: Source, sample_weight: Any, bound: Bound
) -> tuple[FittedRegressor, Tensor]:
    """Remember rows; a memory over its capacity then forgets some. Gives the rows' ids, too."""
    rows = Rows.given(source.X, model.columns, model.predictor.encoder)
    (encoded,) = rows.encode()
    targets = check_targets(source.y, len(rows))
    weight = check_weight(sample_weight, len(rows))
    digests = None if source.groups is None else source.groups.of_rows(len(rows))
    groups = groups_of_new(model, digests, encoded)
    fork = model.fork()
    keys, columns = fork.predictor.keys_of_new([encoded])
    columns |= groups | {TARGET: torch.from_numpy(targets)}
    if TRUST in model.bank.columns:
        columns[TRUST] = _trust(model, encoded, targets)
    own = None if weight is None else as_float(weight / model.weight_unit)
    nothing = torch.zeros(len(rows), dtype=torch.int64)
    ids = fork.predictor.views.add_rows(keys, columns, nothing, own, 1)
    new = NewRows(rows.X, [encoded], targets, weight, source.names, groups)
    return bounded(with_given(fork, new).settled(), bound), ids


def _trust(model: FittedRegressor, encoded: AnyRows, targets: np.ndarray) -> Tensor:
    """Give the probabilities of new targets (n,) to be right, at the rate that the fit found."""
    rate = model.predictor.choice["label_noise"]["rate"]
    predicted = NumberQuery(model, encoded).mixture
    found = find_wrong(predicted, targets, np.ones(len(targets)), rate, model.numbers)
    return torch.from_numpy(1 - found.posterior)


def with_targets(model: FittedRegressor, ids: Any, y: Any) -> FittedRegressor:
    """Give remembered rows other targets."""
    fork = model.fork()
    at = fork.predictor.views.hold(ids)
    targets = check_targets(y, len(at))
    fork.predictor.views.relabel_rows(ids, torch.from_numpy(targets))
    return fork.settled()
