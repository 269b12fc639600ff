"""Training step of an embedder: keys, terms of the loss, key cache, initial scale."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nearwise.nn import (
    NeighborNetwork,
    euclidean,
    fused_leave_one_out_nll,
    neighbor_vote,
    soft_cross_entropy,
    vote_nll,
)
from nearwise.training.augment import draw_batch_mix, mix_ids, mix_labels
from nearwise.training.encoding import Precision, autocast, encode, encode_in_pieces
from nearwise.training.rows import Batch, TrainingRows
from nearwise.training.self_correction import FollowedPredictions
from nearwise.training.settings import TrainConfig

# Factors on 1 / mean distance: from nearly uniform weights to nearly only the nearest row.
_FACTORS = tuple(2.0 ** (step / 2) for step in range(-2, 14))
_SCALE_QUERIES, _SCALE_CANDIDATES = 512, 4096  # rows used to fit the initial scale


class KeyCache:
    """Keys (n, dim) of all training rows, for candidates outside the batch.

    `keys` is empty before the first `refresh_all`; `momentum` is the weight of the old key when a
    row of the batch is refreshed.
    """

    def __init__(
        self,
        network: NeighborNetwork,
        rows: TrainingRows,
        momentum: float = 0.0,
        *,
        precision: Precision = "float32",
    ) -> None:
        self._network = network
        self._rows = rows
        self._precision: Precision = precision
        self.momentum = momentum
        self.keys = torch.empty(0, network.embedder.dim)

    def refresh_all(self) -> None:
        """Recompute all keys."""
        self.keys = encode(self._network, self._rows, precision=self._precision)

    def refresh(self, positions: Tensor, keys: Tensor) -> None:
        """Update the cached keys of a batch's rows, at unit length if the embedder normalizes."""
        mixed = self.momentum * self.keys[positions] + (1 - self.momentum) * keys.detach()
        if self._network.embedder.normalize:
            mixed = torch.nn.functional.normalize(mixed, dim=1)
        self.keys[positions] = mixed


class StepKeys(NamedTuple):
    """Keys of a step's B queries and N candidates; the queries are the first candidates."""

    queries: Tensor  # (B,), positions
    candidates: Tensor  # (N,), positions
    query_keys: Tensor  # (B, dim), of mixed rows with MixUp
    labels: Tensor  # of the queries
    ids: Tensor  # (B,) or (B, 2), of the queries' source rows
    memory: Tensor  # (N, dim), keys of the candidates, if used
    n_learned: int  # number of leading keys with a gradient


def compute_keys(
    network: NeighborNetwork,
    rows: TrainingRows,
    batch: Batch,
    config: TrainConfig,
    generator: torch.Generator,
    cache: KeyCache | None = None,
    *,
    change: Callable[[Tensor, Tensor, torch.Generator], Tensor],
) -> StepKeys:
    """Compute the keys of a step.

    Rows are on the network's device, the generator (views and MixUp) on the CPU. Keys of candidates
    outside the batch come from the cache, without gradient, and keys of the queries are written to
    it; without a cache all keys are computed here. `change` augments numbers or images of the
    queries; its arguments are these, their positions and the generator.
    """
    device = rows.x_num.device
    queries, extra = batch.queries.to(device), batch.extra.to(device)
    if not config.knn_weight:
        extra = extra[:0]
    candidates = torch.cat([queries, extra])
    embedder, labels, ids = network.embedder, rows.labels[queries], rows.row_ids[queries]
    fresh = candidates if cache is None else queries
    x_num, x_cat = _draw_view(rows, fresh, generator), _at(rows.x_cat, fresh)
    first = change(x_num[: len(queries)], queries, generator)
    x_num = first if len(fresh) == len(queries) else torch.cat([first, x_num[len(queries) :]])
    mix = draw_batch_mix(
        config.mixup_alpha, config.mixup_probability, len(queries), generator, device
    )
    # Unmixed keys serve as candidates. If none are needed, only mixed ones are computed; images,
    # expensive to encode, take their candidates from the cache.
    from_cache = cache is not None and rows.are_images
    only_mixed = not config.knn_weight or from_cache
    with autocast(device, config.precision):
        if mix is None:
            keys = embedder(x_num, x_cat).float()
            query_keys = keys[: len(queries)]
        else:
            keys = None if only_mixed else embedder(x_num, x_cat).float()
            mixed = embedder.embed_mixed(first, _first(x_cat, len(queries)), *mix)
            query_keys = embedder.key(mixed).float()
            labels, ids = mix_labels(labels, mix, network.n_classes), mix_ids(ids, mix)
            keys = query_keys[:0] if keys is None else keys
    memory = keys
    if cache is not None:
        memory = torch.cat([keys, cache.keys[candidates[len(keys) :]]])
        unmixed = keys[: len(queries)]
        cache.refresh(queries[: len(unmixed)], unmixed)
    return StepKeys(queries, candidates, query_keys, labels, ids, memory, len(keys))


def step_losses(
    network: NeighborNetwork,
    rows: TrainingRows,
    step: StepKeys,
    config: TrainConfig,
    followed: FollowedPredictions | None = None,
) -> dict[str, Tensor]:
    """Return the unweighted terms "knn" and "ce" of the loss that have a weight.

    `followed` records the head's predictions of unmixed rows.
    """
    weight = _at(rows.sample_weight, step.queries)
    parts: dict[str, Tensor] = {}
    if config.knn_weight:
        parts["knn"] = fused_leave_one_out_nll(
            step.query_keys,
            step.memory,
            network.scale,
            step.labels,
            rows.labels[step.candidates],
            step.ids,
            rows.row_ids[step.candidates],
            network.n_classes,
            similarity=network.similarity,
            smoothing=config.label_smoothing,
            sample_weight=weight,
            candidate_weight=_at(rows.sample_weight, step.candidates),
            n_learned=step.n_learned,
        )
    if config.ce_weight:
        logits = network.output(step.query_keys).logits
        assert logits is not None  # checked before the first step
        parts["ce"] = soft_cross_entropy(
            logits, step.labels, smoothing=config.label_smoothing, sample_weight=weight
        )
        if followed is not None:
            noted = slice(0) if step.ids.ndim == 2 else slice(None)  # mixed rows are skipped
            followed.note(step.queries[noted], logits[noted])
    return parts


def _draw_view(rows: TrainingRows, positions: Tensor, generator: torch.Generator) -> Tensor:
    first = rows.x_num[positions]
    if rows.second_x_num is None:
        return first
    use_first = torch.rand(len(positions), 1, generator=generator).to(first.device) < 0.5
    use_first = use_first.reshape(-1, *(1,) * (first.ndim - 1))
    return torch.where(use_first, first, rows.second_x_num[positions])


def _at(tensor: Tensor | None, positions: Tensor) -> Tensor | None:
    return None if tensor is None else tensor[positions]


def _first(tensor: Tensor | None, n: int) -> Tensor | None:
    return None if tensor is None else tensor[:n]


@torch.no_grad()
def fit_start_scale(
    network: NeighborNetwork,
    rows: TrainingRows,
    generator: torch.Generator,
    precision: Precision = "float32",
) -> float:
    """Set the scale with the lowest leave-one-out NLL on training rows, and return it.

    Training then starts from well-tuned distance weights, and keys need not compensate for a bad
    scale. The CPU generator selects the rows.
    """
    chosen = rows.take(torch.randperm(len(rows), generator=generator)[:_SCALE_CANDIDATES])
    keys = _keys_without_dropout(network, chosen, precision)
    queries = keys[:_SCALE_QUERIES]
    cosine = network.similarity == "cosine"
    distances = 1 - queries @ keys.T if cosine else euclidean(queries, keys)
    unit = 1 / distances.mean().clamp_min(1e-6)
    best_nll, best_scale = float("inf"), network.scale
    for factor in _FACTORS:
        scale = factor * unit
        proba = neighbor_vote(
            queries,
            keys,
            scale,
            chosen.labels,
            network.n_classes,
            query_ids=chosen.row_ids[:_SCALE_QUERIES],
            key_ids=chosen.row_ids,
            similarity=network.similarity,
            candidate_weight=chosen.sample_weight,
        )
        weight = _first(chosen.sample_weight, _SCALE_QUERIES)
        nll = float(vote_nll(proba, chosen.labels[:_SCALE_QUERIES], sample_weight=weight))
        if nll < best_nll:
            best_nll, best_scale = nll, scale
    network.log_scale.copy_(best_scale.log())
    return best_nll


def _keys_without_dropout(
    network: NeighborNetwork, rows: TrainingRows, precision: Precision
) -> Tensor:
    """Return keys with batch statistics, since running statistics are still empty."""
    was_training = network.training
    network.train()
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    with autocast(rows.x_num.device, precision):
        keys = encode_in_pieces(network.embedder, rows)
    network.train(was_training)
    return keys
