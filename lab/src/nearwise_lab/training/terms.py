"""The original study's terms and draws, added to the training of an embedder."""

from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from nearwise.nn import euclidean
from nearwise.training import TrainConfig
from nearwise.training.embedder import EmbedderObjective
from nearwise.training.encoding import autocast
from nearwise.training.objective import Parts
from nearwise.training.rows import Batch
from nearwise.training.steps import StepKeys
from nearwise_lab.training.hard_rows import (
    hard_row_weights,
    neighbor_disagreement,
    weighted_batches,
)
from nearwise_lab.training.losses import (
    margin_contrastive,
    supervised_contrastive,
    weight_entropy,
)

_SELECTED_EVERY = 5  # epochs


class TermsConfig(TrainConfig):
    """Settings of a training by `TermsObjective`: those of `TrainConfig`, and the study's.

    Parameters
    ----------
    contrastive_weight, entropy_weight : float, default=0.0
        Weights of the contrastive term, and of the negative entropy of the neighbor weights.
    contrastive_kind : {"supervised", "margin"}, default="supervised"
    hard_negative_weight : float, default=1.0
        How much more often rows are drawn whose neighbors disagree most; 1 draws all alike.
    """

    contrastive_weight: float = Field(0.0, ge=0)
    contrastive_kind: Literal["supervised", "margin"] = "supervised"
    entropy_weight: float = Field(0.0, ge=0)
    hard_negative_weight: float = Field(1.0, ge=1)


class TermsObjective(EmbedderObjective):
    """The losses on a network's keys with the terms of `TermsConfig`; for `train_embedder`."""

    settings: TermsConfig
    row_weights: Tensor | None = None

    @property
    def needs_unmixed(self) -> bool:  # type: ignore[override]
        """Whether there is a contrastive term, which compares the rows as they are."""
        return self.settings.contrastive_weight > 0

    def draw(self, epoch: int, generator: torch.Generator) -> Iterator[Batch]:
        """Batches of an epoch, hard rows more often from the second on."""
        config = self.settings
        if config.hard_negative_weight == 1 or epoch == 1:
            return super().draw(epoch, generator)
        if self.row_weights is None or (epoch - 1) % _SELECTED_EVERY == 0:
            keys, rows = self._keys(self.rows), self.rows
            apart = neighbor_disagreement(keys, rows.labels, rows.row_ids, self.network.n_classes)
            self.row_weights = hard_row_weights(apart, weight=config.hard_negative_weight)
        n_rows, weights = len(self.rows), self.row_weights
        return weighted_batches(n_rows, config.batch_size, config.n_candidates, generator, weights)

    def terms(self, step: StepKeys, generator: torch.Generator) -> Parts:
        """Terms of the library, then "entropy" and "contrastive"."""
        parts = super().terms(step, generator)
        if self.settings.entropy_weight and self.settings.knn_weight:
            parts["entropy"] = -weight_entropy(self._scores(step))
        if self.settings.contrastive_weight:
            parts["contrastive"] = self._contrast(step, generator)
        return parts

    def _scores(self, step: StepKeys) -> Tensor:
        """Log-weights of the candidates, without those of the query's own rows."""
        network, query = self.network, step.query_keys
        if network.similarity == "cosine":
            scores = (network.scale * query) @ step.memory.T
        else:
            scores = -network.scale * euclidean(query, step.memory)
        candidate_ids = self.rows.row_ids[step.candidates]
        own = step.ids.reshape(len(query), -1, 1) == candidate_ids
        return scores.masked_fill(own.any(dim=1), -torch.inf)

    def _contrast(self, step: StepKeys, generator: torch.Generator) -> Tensor:
        """Contrastive term of the unmixed batch; a second view joins as more positives."""
        rows, config, keys = self.rows, self.settings, step.unmixed
        labels = rows.labels[step.queries]
        if rows.second_x_num is not None:
            view = self.changed(rows.second_x_num[step.queries], step.queries, generator)
            x_cat = None if rows.x_cat is None else rows.x_cat[step.queries]
            with autocast(view.device, config.precision):
                second = self.network.embedder(view, x_cat).float()
            keys, labels = torch.cat([keys, second]), torch.cat([labels, labels])
        loss = margin_contrastive if config.contrastive_kind == "margin" else supervised_contrastive
        return loss(keys, labels, self.network.n_classes)

    def state(self) -> dict[str, Tensor]:
        """Keep the weights of the rows too."""
        weights = self.row_weights
        return super().state() | ({} if weights is None else {"row_weights": weights})

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take them back."""
        super().load_state(state)
        self.row_weights = state.get("row_weights")
