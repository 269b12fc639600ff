"""NumberPredictor: the fitted parts of a regressor, and its predictions."""

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
    """Encoded rows as keys of every space, and the base's predictions (n,), if any."""

    keys: dict[str, Tensor]
    locations: Tensor | None


@dataclass
class NumberModels(ModelsOfTable):
    """Row models of a regression table; there are no networks.

    Attributes
    ----------
    center, scale : float
        Center and scale of the targets in the fit. They standardise the base's predictions,
        which join the features in the space "supervised".
    """

    base: NumberBase | None
    center: float
    scale: float
    embedding: None = None

    def __call__(self, rows: Encoded) -> KeyedNumbers:
        """Keys of encoded rows, and the base's predictions."""
        keys = self.label_free_keys(rows)
        if self.base is None:
            return KeyedNumbers(keys, None)
        locations = torch.from_numpy(self.base.predict(self.encoder, rows))
        return KeyedNumbers(keys | self.supervised(keys["features"], locations), locations)

    def supervised(self, features: Tensor, locations: Tensor) -> dict[str, Tensor]:
        """Keys of the space "supervised"; only with a base."""
        return {SUPERVISED: beside_locations(features, locations, self.center, self.scale)}


class Spread(NamedTuple):
    """Width factors of the predicted mixtures.

    Attributes
    ----------
    factor : float
        Factor that widens the mixture of a new row around its mean.
    left_out : float
        The same factor for leave-one-out predictions of remembered rows.
    crps : float
        Mean CRPS of the leave-one-out predictions.
    """

    factor: float = 1.0
    left_out: float = 1.0
    crps: float = float("nan")


NOT_FITTED = Spread()


def wrong_targets(
    predictor: "NumberPredictor", mixture: Mixture, rate: float | None
) -> WrongTargets:
    """Find wrong targets of the remembered rows by `mixture`, their leave-one-out predictions.

    `rate`: share of wrong targets, if known.
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
        Bounds of the predictions; see `bounds_of`.
    """

    row_models: NumberModels
    views: NumberViews
    head: PretrainedNumberHead
    spread: Spread = NOT_FITTED
    lower: float = -np.inf
    upper: float = np.inf

    # --- retrieval ------------------------------------------------------------------------------

    def retrieve(self, rows: Encoded) -> tuple[Tensor, NumberRetrieval]:
        """Feature keys and neighbors of one block of new rows."""
        keyed = self.row_models(rows)
        return keyed.keys["features"], self.views.retrieve_numbers(keyed.keys, keyed.locations)

    def retrieve_remembered(self, positions: Tensor) -> NumberRetrieval:
        """Search all spaces for the neighbors of remembered rows, each left out by its id."""
        bank = self.views.bank
        keys = {spec.name: bank.keys[spec.name][positions] for spec in self.views.specs}
        locations = bank.columns[LOCATION][positions] if self.has_base else None
        return self.views.retrieve_numbers(keys, locations, positions)

    def keys_of_new(self, views: list[Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Keys and bank columns of rows to add to the memory."""
        keyed = self.row_models(views[0])
        columns = {} if keyed.locations is None else {LOCATION: keyed.locations}
        return keyed.keys, columns

    # --- predictions ----------------------------------------------------------------------------

    def mixture(self, retrieved: NumberRetrieval) -> Mixture:
        """Predictive mixtures from retrieved neighbors."""
        return self.finished(self.head.predict(retrieved.spaces), retrieved)

    def finished(self, output: NumberOutput, retrieved: NumberRetrieval) -> Mixture:
        """Mixtures of the head in the unit of the target, widened by `spread`."""
        wide = self.spread.left_out if retrieved.is_left_out else self.spread.factor
        return self.plain(output, retrieved).scaled(wide)

    def plain(self, output: NumberOutput, retrieved: NumberRetrieval) -> Mixture:
        """Mixtures of the head in the unit of the target, not widened."""
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
        for rows in positions.split(BLOCK):  # one empty block if there are no rows
            retrieved = self.retrieve_remembered(rows)
            mixtures.append(self.mixture(retrieved))
            distances.append(retrieved.farthest)
        return Mixture.joined(mixtures), np.concatenate(distances)
