"""One training step: keys of queries and candidates, and the terms of the loss."""

import torch
from torch import Tensor

from nearwise.nn import (
    NeighborNetwork,
    contrastive,
    fused_leave_one_out_nll,
    leave_self_out,
    soft_cross_entropy,
    weight_entropy,
)
from nearwise.training.config import TrainConfig
from nearwise.training.encode import encode
from nearwise.training.mixup import Mix, draw_mix, mix_ids, mix_labels
from nearwise.training.rows import TrainingRows
from nearwise.training.sampling import Batch


class KeyCache:
    """Keys of all training rows, for candidates outside the batch.

    Parameters
    ----------
    network : NeighborNetwork
    rows : TrainingRows
    momentum : float, default=0.0
        Share of the old key that stays when a seen row is refreshed.
    """

    def __init__(self, network: NeighborNetwork, rows: TrainingRows, momentum: float = 0.0) -> None:
        self._network = network
        self._rows = rows
        self.momentum = momentum
        self.keys = encode(network, rows)

    def refresh_all(self) -> None:
        """Compute every key anew."""
        self.keys = encode(self._network, self._rows)

    def refresh(self, positions: Tensor, keys: Tensor) -> None:
        """Move the keys of seen rows to `keys`, at unit length where the embedder has it."""
        mixed = self.momentum * self.keys[positions] + (1 - self.momentum) * keys.detach()
        if self._network.embedder.normalize:
            mixed = torch.nn.functional.normalize(mixed, dim=1)
        self.keys[positions] = mixed


def step_losses(
    network: NeighborNetwork,
    rows: TrainingRows,
    batch: Batch,
    config: TrainConfig,
    generator: torch.Generator,
    cache: KeyCache | None = None,
) -> dict[str, Tensor]:
    """Terms of the loss of one batch, unweighted, those with weight 0 left out.

    Parameters
    ----------
    network : NeighborNetwork
    rows : TrainingRows
        All training rows, on the network's device.
    batch : Batch
        Positions of queries and further candidates.
    config : TrainConfig
    generator : torch.Generator
        On the CPU; decides views and MixUp.
    cache : KeyCache, optional
        Where further candidates take their keys from; without it they are computed here, with
        gradient. Keys of the queries are written back.

    Returns
    -------
    parts : dict of str to scalar Tensor
        Some of "knn", "ce", "contrastive", "entropy".
    """
    device = rows.x_num.device
    queries, extra = batch.queries.to(device), batch.extra.to(device)
    n_queries = len(queries)
    if not config.knn_weight:
        extra = extra[:0]
    fresh = queries if cache is not None else torch.cat([queries, extra])
    x_num, x_cat = _draw_view(rows, fresh, generator), _at(rows.x_cat, fresh)
    mix = _draw_mix(config, n_queries, generator, device)
    only_mixed = mix is not None and not (config.knn_weight or config.contrastive_weight)
    # The unmixed keys are candidates or views; where neither is asked for, mixed ones are enough.
    keys = x_num.new_zeros(n_queries, 0) if only_mixed else network.embedder(x_num, x_cat)
    batch_keys, labels = keys[:n_queries], rows.labels[queries]
    weight = _at(rows.sample_weight, queries)

    query_keys, query_labels, query_ids = batch_keys, labels, rows.row_ids[queries]
    if mix is not None:
        query_keys = network.embedder.key(
            network.embedder.embed_mixed(x_num[:n_queries], _first(x_cat, n_queries), *mix)
        )
        query_labels = mix_labels(labels, mix, network.n_classes)
        query_ids = mix_ids(query_ids, mix)

    parts: dict[str, Tensor] = {}
    if config.knn_weight:
        memory_keys = keys if cache is None else torch.cat([keys, cache.keys[extra]])
        candidates = torch.cat([queries, extra])
        ids = rows.row_ids[candidates]
        parts["knn"] = fused_leave_one_out_nll(
            query_keys,
            memory_keys,
            network.scale,
            query_labels,
            rows.labels[candidates],
            query_ids,
            ids,
            network.n_classes,
            similarity=network.similarity,
            smoothing=config.label_smoothing,
            sample_weight=weight,
            candidate_weight=_at(rows.sample_weight, candidates),
        )
        if config.entropy_weight:
            scores = network.scores(query_keys, memory_keys)
            parts["entropy"] = -weight_entropy(leave_self_out(scores, query_ids, ids))
    if config.ce_weight:
        logits = network.output(query_keys).logits
        assert logits is not None  # checked before the first step
        parts["ce"] = soft_cross_entropy(
            logits, query_labels, smoothing=config.label_smoothing, sample_weight=weight
        )
    if config.contrastive_weight:
        parts["contrastive"] = _contrast_views(network, rows, queries, batch_keys, labels, config)
    if cache is not None:
        cache.refresh(queries, batch_keys)
    return parts


def _contrast_views(
    network: NeighborNetwork,
    rows: TrainingRows,
    queries: Tensor,
    keys: Tensor,
    labels: Tensor,
    config: TrainConfig,
) -> Tensor:
    """Contrastive term of the unmixed batch; a second view joins as more positives."""
    if rows.second_x_num is not None:
        second = network.embedder(rows.second_x_num[queries], _at(rows.x_cat, queries))
        keys, labels = torch.cat([keys, second]), torch.cat([labels, labels])
    return contrastive(
        config.contrastive_kind,
        keys,
        labels,
        network.n_classes,
        temperature=config.contrastive_temperature,
        margin=config.contrastive_margin,
    )


def _draw_view(rows: TrainingRows, positions: Tensor, generator: torch.Generator) -> Tensor:
    first = rows.x_num[positions]
    if rows.second_x_num is None:
        return first
    use_first = torch.rand(len(positions), 1, generator=generator).to(first.device) < 0.5
    return torch.where(use_first, first, rows.second_x_num[positions])


def _draw_mix(
    config: TrainConfig, n_rows: int, generator: torch.Generator, device: torch.device
) -> Mix | None:
    if not config.mixup_alpha:
        return None
    if float(torch.rand((), generator=generator)) >= config.mixup_probability:
        return None
    mix = draw_mix(n_rows, config.mixup_alpha, generator)
    return Mix(mix.partner.to(device), mix.share.to(device))


def _at(tensor: Tensor | None, positions: Tensor) -> Tensor | None:
    return None if tensor is None else tensor[positions]


def _first(tensor: Tensor | None, n: int) -> Tensor | None:
    return None if tensor is None else tensor[:n]
