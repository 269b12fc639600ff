"""NumberPredictor: the fitted parts of a regressor, and how they predict."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nearwise.estimators.fit.number_base import NumberBase
from nearwise.estimators.inputs.table import Encoded
from nearwise.estimators.model.mixture import Mixture
from nearwise.estimators.model.number_memory import (
    LOCATION,
    TARGET,
    NumberRetrieval,
    NumberViews,
)
from nearwise.estimators.model.predictor import Predictor
from nearwise.estimators.model.row_models import BLOCK, ModelsOfTable, beside_locations
from nearwise.estimators.model.wrong_targets import WrongTargets, find_wrong
from nearwise.functional.threads import one_thread
from nearwise.nn import NumberOutput, PretrainedNumberHead

SUPERVISED = "supervised"


class KeyedNumbers(NamedTuple):
    """Rows as the models see them: keys of every space, and the base's predictions (n,), if any."""

    keys: dict[str, Tensor]
    locations: Tensor | None


@dataclass
class NumberModels(ModelsOfTable):
    """Models of a table whose targets are numbers; there are no networks.

    Attributes
    ----------
    center, scale : float
        Of the targets of the fit, in which the base's predictions are beside the features in the
        space "supervised".
    """

    base: NumberBase | None
    center: float
    scale: float
    embedding: None = None

    def __call__(self, rows: Encoded) -> KeyedNumbers:
        """Make keys of rows."""
        keys = {"features": self.feature_keys(rows)}
        if self.base is None:
            return KeyedNumbers(keys, None)
        locations = torch.from_numpy(self.base.predict(self.encoder, rows))
        return KeyedNumbers(keys | self.supervised(keys["features"], locations), locations)

    def supervised(self, features: Tensor, locations: Tensor) -> dict[str, Tensor]:
        """Keys of the space that a base adds."""
        return {SUPERVISED: beside_locations(features, locations, self.center, self.scale)}


class Spread(NamedTuple):
    """How wide the mixtures are to be.

    Attributes
    ----------
    factor : float
        By which each mixture of a new row is widened around its mean.
    left_out : float
        The same of remembered rows, each without itself.
    crps : float
        Mean over the left-out rows.
    """

    factor: float = 1.0
    left_out: float = 1.0
    crps: float = float("nan")


NOT_FITTED = Spread()


def wrong_targets(
    predictor: "NumberPredictor", mixture: Mixture, rate: float | None
) -> WrongTargets:
    """Find wrong targets among the remembered rows, of which `mixture` predicts each left out.

    `rate`: their share, where it is known.
    """
    bank = predictor.views.bank
    targets, weight = bank.columns[TARGET].numpy(), bank.sample_weight.double().numpy()
    return find_wrong(mixture, targets, weight, rate)


@dataclass(frozen=True, eq=False, kw_only=True)
class NumberPredictor(Predictor):
    """The fitted parts of a regressor.

    Attributes
    ----------
    head : PretrainedNumberHead
    spread : Spread
    lower, upper : float
        Bounds of what is predicted; see `bounds_of`.
    """

    row_models: NumberModels
    views: NumberViews
    head: PretrainedNumberHead
    spread: Spread = NOT_FITTED
    lower: float = -np.inf
    upper: float = np.inf

    # --- retrieval ------------------------------------------------------------------------------

    def retrieve(self, rows: Encoded) -> tuple[Tensor, NumberRetrieval]:
        """Features, and what is retrieved for new rows, few enough to be encoded at once."""
        keyed = self.row_models(rows)
        return keyed.keys["features"], self.views.retrieve_numbers(keyed.keys, keyed.locations)

    def retrieve_remembered(self, positions: Tensor) -> NumberRetrieval:
        """Search all spaces for remembered rows, each left out of its own neighbors by id."""
        bank = self.views.bank
        keys = {spec.name: bank.keys[spec.name][positions] for spec in self.views.specs}
        locations = bank.columns[LOCATION][positions] if self.has_base else None
        return self.views.retrieve_numbers(keys, locations, positions)

    def keys_of_new(self, views: list[Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Keys of rows that are to be remembered, and the columns of the bank about them."""
        keyed = self.row_models(views[0])
        columns = {} if keyed.locations is None else {LOCATION: keyed.locations}
        return keyed.keys, columns

    # --- predictions ----------------------------------------------------------------------------

    def mixture(self, retrieved: NumberRetrieval) -> Mixture:
        """Predict from what was retrieved."""
        return self.finished(self.head.predict(retrieved.spaces), retrieved)

    def finished(self, output: NumberOutput, retrieved: NumberRetrieval) -> Mixture:
        """Bring mixtures of the head into the unit of the target, and widen them."""
        wide = self.spread.left_out if retrieved.is_left_out else self.spread.factor
        return self.plain(output, retrieved).scaled(wide)

    def plain(self, output: NumberOutput, retrieved: NumberRetrieval) -> Mixture:
        """Bring mixtures of the head into the unit of the target."""
        unit, weights = retrieved.spaces[0].unit, output.weights.double()
        atoms = retrieved.spaces[0].location[:, None] + unit[:, None] * output.atoms
        return Mixture(
            atoms.numpy(),
            (weights / weights.sum(1, keepdim=True)).numpy(),
            (unit * output.bandwidth).numpy(),
            self.lower,
            self.upper,
        )

    @one_thread(torch_only=True)
    def predict_left_out(self, positions: Tensor) -> tuple[Mixture, np.ndarray]:
        """Leave-one-out predictions of some remembered rows, and distances to the k-th neighbor."""
        mixtures, distances = [], []
        for rows in positions.split(BLOCK):  # one without rows where there are none
            retrieved = self.retrieve_remembered(rows)
            mixtures.append(self.mixture(retrieved))
            distances.append(retrieved.farthest)
        return Mixture.joined(mixtures), np.concatenate(distances)
