"""Training of an embedder: batches, gradients and evaluation of the losses on its keys."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearwise.nn import FastCNN, ImageEmbedder, NeighborNetwork, network_config, vote_nll
from nearwise.training.augment import augment
from nearwise.training.checkpoint import content_hash
from nearwise.training.encoding import (
    encode,
    is_out_of_memory,
    predict_head,
    predict_neighbors,
    release_memory,
)
from nearwise.training.engine import Progress, TrainingResult, train_epochs
from nearwise.training.objective import Objective, Parts, Record
from nearwise.training.rows import (
    Batch,
    TrainingRows,
    epoch_batches,
    split_batch,
)
from nearwise.training.schedule import make_optimizer
from nearwise.training.self_correction import FollowedPredictions, SelfCorrection
from nearwise.training.settings import Augmentation, EngineConfig, TrainConfig
from nearwise.training.steps import (
    KeyCache,
    StepKeys,
    compute_keys,
    fit_start_scale,
    step_losses,
)
from nearwise.warn import warn_user

_MOST_SCORED_AGAINST = 8192  # training rows in the memory of held-out scores


def train_embedder(
    network: NeighborNetwork,
    train: TrainingRows,
    held_out: TrainingRows | None,
    config: TrainConfig,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    checkpoint: str | Path | None = None,
    progress: Progress | None = None,
    correction: SelfCorrection | None = None,
    objective: "type[EmbedderObjective] | None" = None,
) -> TrainingResult:
    """Train `network` in place; it ends in eval mode with its best weights.

    Every query is left out of its own neighbors by id, in training and in scoring. With
    `held_out` rows the best epoch is the one with the lowest NLL on them, scored against the
    training rows, the untrained network being epoch 0; without, the last.

    Parameters
    ----------
    network : NeighborNetwork
    train : TrainingRows
        At least 2 rows with unique ids.
    held_out : TrainingRows or None
        Rows for early stopping; their ids must not occur in `train`.
    config : TrainConfig
    seed : int
        Seed of batches, candidates, MixUp and dropout. torch's global random state is
        unchanged.
    device : torch.device or str, default="cpu"
    checkpoint : path of a folder, optional
        Written at the end of epochs. If it exists, the run resumes from it, with the result of an
        uninterrupted run.
    progress : callable, optional
        Called with each epoch's record. Raising KeyboardInterrupt there ends the run.
    correction : SelfCorrection, optional
        Correction of wrong training labels by the network's predictions. Needs a linear head, and
        batches without MixUp. The last epoch is then kept: the NLL on uncorrected held-out labels
        would choose an early one.
    objective : subclass of EmbedderObjective, optional
        Objective with further terms than those of `TrainConfig`.

    Returns
    -------
    result : TrainingResult
        `history` holds per epoch: epoch (from 1), train_loss, parts (dict of the loss's terms),
        held_out_nll (None if not evaluated), lr, scale, seconds.

    Raises
    ------
    ValueError
        If rows, ids, labels or settings do not fit, or the loss is no longer finite.

    Warns
    -----
    UserWarning
        If the run is interrupted: the best weights so far are kept. If a step ran out of memory:
        training continues with smaller pieces.
    """
    check_training(network, train, held_out, config, correction)
    network.to(device)
    with _channels_last(network):
        made = (objective or EmbedderObjective)(
            network,
            train.to(device),
            None if held_out is None else held_out.to(device),
            config,
            seed=seed,
            correction=correction,
        )
        settings: list[Any] = [network_config(network), config.decides()]
        tensors = {
            f"{part}/{name}": tensor
            for part, rows in (("train", train), ("held out", held_out))
            if rows is not None
            for name, tensor in rows.tensors()
        }
        if correction is not None:
            settings.append([correction.momentum, correction.power, correction.warmup])
            tensors["likelihood"] = correction.likelihood
        return train_epochs(
            made,
            # The objective sets the precision of the embedder; the loss is float32.
            config.model_copy(update={"precision": "float32"}),
            seed=seed,
            device=device,
            monitor=None if held_out is None or correction is not None else "nll",
            checkpoint=checkpoint,
            fingerprint="" if checkpoint is None else content_hash(settings, tensors),
            progress=progress,
        )


@contextmanager
def _channels_last(network: NeighborNetwork) -> Iterator[None]:
    """Use the channels-last memory format in the context, if it is faster."""
    embedder, on_gpu = network.embedder, network.log_scale.device.type == "cuda"
    faster = isinstance(embedder, ImageEmbedder) and (
        on_gpu or isinstance(embedder.backbone, FastCNN)
    )
    if faster:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        yield
    finally:
        if faster:
            network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


class EmbedderObjective(Objective):
    """Losses on a network's keys, see `TrainConfig`.

    Rows are on the network's device. A batch that does not fit into memory is split, from then on,
    into twice as many pieces (`n_pieces`) with summed gradients; in-batch terms and normalisation
    layers then use one piece at a time.
    """

    seeded_once = True
    starts_judged = True
    refresh_every = 5
    """Epochs between full updates of the key cache."""

    def __init__(
        self,
        network: NeighborNetwork,
        rows: TrainingRows,
        held_out: TrainingRows | None,
        config: TrainConfig,
        *,
        seed: int = 0,
        correction: SelfCorrection | None = None,
    ) -> None:
        super().__init__(network, len(rows))
        network.embedder.fit_inputs(rows.x_num)
        self.network, self.rows, self.held_out = network, rows, held_out
        self.settings, self.seed = config, seed
        self.scored_against = self._scored_against()
        self.mirrored: Tensor | None = None
        self.cache: KeyCache | None = None
        if config.cache_momentum is not None and config.knn_weight:
            momentum, precision = config.cache_momentum, config.precision
            self.cache = KeyCache(network, rows, momentum, precision=precision)
        self.followed: FollowedPredictions | None = None
        if correction is not None:
            smoothing, device = config.label_smoothing, rows.x_num.device
            self.followed = FollowedPredictions(correction, smoothing, device)
            self.corrects_after = max(1, round(correction.warmup * config.epochs))
        self.n_pieces = 1

    def make_optimizer(self, config: EngineConfig) -> torch.optim.Optimizer:
        """Make an optimizer with a separate rate for an image backbone."""
        return make_optimizer(self.network, config, backbone_lr=self.settings.backbone_lr)

    def start(self, generator: torch.Generator) -> None:
        """Fit the initial scale."""
        network = self.network
        if self.settings.knn_weight and network.log_scale.requires_grad:
            fit_start_scale(network, self.rows, generator, self.settings.precision)

    def batches(
        self, epoch: int, config: EngineConfig, generator: torch.Generator
    ) -> Iterator[Batch]:
        """Draw queries and candidates, after an update of labels and cached keys."""
        if self.followed is not None and epoch > self.corrects_after:
            self.rows = replace(self.rows, labels=self.followed.labels())
        self.network.embedder.begin_epoch(epoch)
        self.mirrored = self._mirror(epoch)
        if self.cache is not None and (epoch - 1) % self.refresh_every == 0:
            self.cache.refresh_all()
        yield from self.draw(epoch, generator)

    def draw(self, epoch: int, generator: torch.Generator) -> Iterator[Batch]:
        """Draw the batches of an epoch."""
        settings = self.settings
        return epoch_batches(len(self.rows), settings.batch_size, settings.n_candidates, generator)

    def _mirror(self, epoch: int) -> Tensor | None:
        """Return a mask (n,) of the rows to mirror in this epoch, if images alternate."""
        augment = self.settings.augment
        if augment is None or augment.flip != "alternate":
            return None
        generator = torch.Generator().manual_seed(self.seed)
        first = torch.rand(len(self.rows), generator=generator) < 0.5
        return (first if epoch % 2 else ~first).to(self.rows.x_num.device)

    def changed(self, x_num: Tensor, positions: Tensor, generator: torch.Generator) -> Tensor:
        """Return the numbers or images of the rows at these positions, augmented at random."""
        if self.settings.augment is None:
            return x_num
        mirrored = None if self.mirrored is None else self.mirrored[positions]
        return augment(x_num, self.settings.augment, generator, mirrored=mirrored)

    def gradients(
        self,
        batch: Batch,
        generator: torch.Generator,
        step: int,
        backward: Callable[[Tensor], None],
    ) -> Parts:
        """Compute the terms of the loss, and their weighted sum as "loss"."""
        while True:
            state = generator.get_state()
            try:
                return self._add_pieces(batch, generator, backward)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or not self._can_split(len(batch.queries)):
                    raise
            self.n_pieces *= 2
            generator.set_state(state)
            self.network.zero_grad(set_to_none=True)
            release_memory()
            warn_user(
                f"Out of memory in a training step of {len(batch.queries)} rows; batches go on in "
                f"{self.n_pieces} pieces whose gradients are added up."
            )

    def _can_split(self, n_queries: int) -> bool:
        # Normalisation layers need two rows. Without a cache every piece encodes all candidates, so
        # splitting saves no memory.
        many = self.cache is None and bool(self.settings.knn_weight)
        return n_queries >= 4 * self.n_pieces and not many

    def _add_pieces(
        self,
        batch: Batch,
        generator: torch.Generator,
        backward: Callable[[Tensor], None],
    ) -> Parts:
        config, means = self.settings, Parts()
        for piece in split_batch(batch, self.n_pieces):
            step = compute_keys(
                self.network,
                self.rows,
                piece,
                config,
                generator,
                self.cache,
                change=self.changed,
            )
            parts = self.terms(step, generator)
            loss = torch.stack(
                [getattr(config, f"{name}_weight") * part for name, part in parts.items()]
            ).sum()
            share = self._share(piece, batch)
            backward(loss if share == 1 else share * loss)
            for name, value in {"loss": loss, **parts}.items():
                part = value.detach() if share == 1 else share * value.detach()
                means[name] = means[name] + part if name in means else part
        return means

    def terms(self, step: StepKeys, generator: torch.Generator) -> Parts:
        """Return the unweighted terms of the loss; the weight of each is NAME_weight."""
        return step_losses(self.network, self.rows, step, self.settings, self.followed)

    def _share(self, piece: Batch, whole: Batch) -> float:
        """Weight of a piece's queries in the mean over the whole batch."""
        if len(piece.queries) == len(whole.queries):
            return 1.0
        weight = self.rows.sample_weight
        if weight is None:
            return len(piece.queries) / len(whole.queries)
        part, total = (
            float(weight[rows.queries.to(weight.device)].sum()) for rows in (piece, whole)
        )
        return part / total if total else 0.0

    def _keys(self, rows: TrainingRows) -> Tensor:
        return encode(self.network, rows, precision=self.settings.precision)

    def _scored_against(self) -> TrainingRows:
        """Training rows used as memory for held-out rows, the same in every epoch."""
        if len(self.rows) <= _MOST_SCORED_AGAINST:
            return self.rows
        order = torch.randperm(len(self.rows), generator=torch.Generator().manual_seed(self.seed))
        return self.rows.take(order[:_MOST_SCORED_AGAINST])

    def evaluate(self, epoch: int) -> dict[str, Any]:
        """Compute the NLL of the held-out rows, if any."""
        held_out = self.held_out
        if held_out is None:
            return {}
        keys = self._keys(held_out)
        if self.settings.ce_weight:
            proba = predict_head(self.network, held_out, keys=keys).exp()
        else:
            proba = predict_neighbors(
                self.network,
                held_out,
                self.scored_against,
                query_keys=keys,
                memory_keys=self._keys(self.scored_against),
            )
        nll = vote_nll(proba, held_out.labels, sample_weight=held_out.sample_weight)
        return {"nll": nll}

    def record(self, epoch: Record) -> Record:
        """Return a record in the form of an embedder's history."""
        parts = dict(epoch["train"])
        return {
            "epoch": epoch["epoch"],
            "train_loss": parts.pop("loss"),
            "parts": parts,
            "lr": epoch["lr"],
            "scale": float(self.network.scale.detach()),
            "held_out_nll": epoch["evaluation"].get("nll"),
            "seconds": epoch["seconds"],
        }

    def state(self) -> dict[str, Tensor]:
        """Return cached keys, averages of predictions and the number of pieces."""
        state = {"n_pieces": torch.tensor(self.n_pieces)}
        if self.cache is not None and len(self.cache.keys):
            state["cache"] = self.cache.keys
        if self.followed is not None:
            state["followed"] = self.followed.average
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore the tensors of `state`."""
        self.n_pieces = int(state["n_pieces"])
        if self.cache is not None and "cache" in state:
            self.cache.keys = state["cache"]
        if self.followed is not None:
            self.followed.average = state["followed"]


def check_training(
    network: NeighborNetwork,
    train: TrainingRows,
    held_out: TrainingRows | None,
    config: TrainConfig,
    correction: SelfCorrection | None = None,
) -> None:
    """Raise ValueError if rows, labels, ids or settings do not fit the network."""
    if len(train) < 2:
        raise ValueError(
            f"Training needs at least 2 rows, got {len(train)}: a row cannot be its own neighbor."
        )
    if len(torch.unique(train.row_ids)) < 2:
        raise ValueError("All training rows have one id, so that none can vote for another.")
    if config.ce_weight and network.head is None:
        raise ValueError("ce_weight needs a linear head. Build the network with head=True.")
    for name, rows in (("train", train), ("held_out", held_out)):
        if rows is not None:
            _check_labels(name, rows.labels, network.n_classes)
            _check_kind(name, rows, network)
    if config.augment is not None:
        _check_augmentation(train, config.augment)
    if correction is not None:
        _check_correction(network, train, config, correction)
    if held_out is None:
        return
    if len(held_out) == 0:
        raise ValueError("held_out has no rows. Pass None to train without early stopping.")
    if torch.isin(held_out.row_ids.cpu(), train.row_ids.cpu()).any():
        raise ValueError(
            "Some held_out ids are also training ids. Give held-out rows ids of their own: rows "
            "with equal ids are taken for one row and left out."
        )


def _check_labels(name: str, labels: Tensor, n_classes: int) -> None:
    if labels.ndim == 2 and labels.shape[1] == n_classes:
        return
    hard = labels.ndim == 1 and not labels.is_floating_point()
    if not hard or (len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < n_classes):
        raise ValueError(
            f"{name} labels must be class positions from 0 to {n_classes - 1}, int64 of shape "
            f"(n,), or probabilities of shape (n, {n_classes}); got {labels.dtype} of shape "
            f"{tuple(labels.shape)}."
        )


def _check_kind(name: str, rows: TrainingRows, network: NeighborNetwork) -> None:
    if rows.are_images == network.embedder.takes_images:
        return
    present, expected = ("images", "columns") if rows.are_images else ("columns", "images")
    raise ValueError(
        f"The {name} rows are {present}, but {type(network.embedder).__name__} takes {expected}. "
        "Build the network with another embedder."
    )


def _check_correction(
    network: NeighborNetwork, train: TrainingRows, config: TrainConfig, correction: SelfCorrection
) -> None:
    shape = (len(train), network.n_classes)
    if correction.likelihood.shape != shape:
        raise ValueError(
            f"likelihood has shape {tuple(correction.likelihood.shape)}, and must have {shape}: "
            "one row per training row, one column per class."
        )
    if not config.ce_weight:
        raise ValueError("A correction follows the head's predictions. Give ce_weight a value.")
    if config.mixup_alpha and config.mixup_probability == 1:
        raise ValueError(
            "A correction follows predictions of single rows, and MixUp takes all batches. Lower "
            "mixup_probability, or give mixup_alpha 0."
        )


def _check_augmentation(rows: TrainingRows, augment: Augmentation) -> None:
    if not rows.are_images:
        raise ValueError("augment changes images, and the training rows are columns. Leave it out.")
    side = min(rows.x_num.shape[2:])
    for name in ("crop_padding", "cutout"):
        if getattr(augment, name) >= side:
            raise ValueError(
                f"augment has {name}={getattr(augment, name)}, but images have a side of {side} "
                "pixels. Choose a smaller one."
            )
