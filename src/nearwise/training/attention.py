"""Training of a neighbor head on rows whose neighborhoods are given."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from nearwise.names import did_you_mean
from nearwise.nn import HeadOutput, NeighborHead, Neighborhood
from nearwise.nn.neighbor_head import NEGLIGIBLE
from nearwise.training.schedule import learning_rate_factor

_CHUNK = 4096
_SMALL_STEP = 20_000  # neighbors a step
_LARGE = 5_000
_LAST_RATE = 0.02  # share of the rate that is left at the end


class HeadConfig(BaseModel):
    """Settings of `train_head`.

    Parameters
    ----------
    epochs : int or None, default=None
        Most evaluations; None takes 30, or 12 above 5,000 training rows.
    batch_size : int or None, default=None
        Rows a step; None takes an eighth of the rows, between 64 and 512.
    steps_per_epoch : int, default=40
        Most steps between evaluations; more rows than that are drawn afresh every epoch.
    lr, weight_decay : float
        Of AdamW. The rate falls to nearly nothing over the epochs, as half a cosine.
    gate_lr : float, default=0.1
        Rate of the gates that pool the spaces and the base; they are few, have no decay, and at
        the rate of the rest they would not arrive.
    neighbor_weight : float, default=0.5
        Weight of the loss of the neighbors alone, beside the loss of the pooled prediction.
    patience : int, default=10
        Evaluations without a better held-out NLL before stopping.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _hint_at_misspelt(cls, values: Any) -> Any:
        known = list(cls.model_fields)
        strange = [name for name in values if name not in known] if isinstance(values, dict) else []
        if strange:
            hint = did_you_mean(strange[0], known) or f" Known: {', '.join(known)}."
            raise ValueError(f"Unknown head setting {strange[0]!r}.{hint}")
        return values

    epochs: int | None = Field(None, ge=1)
    batch_size: int | None = Field(None, ge=1)
    steps_per_epoch: int = Field(40, ge=1)
    lr: float = Field(1e-2, gt=0)
    gate_lr: float = Field(0.1, gt=0)
    weight_decay: float = Field(1e-3, ge=0)
    neighbor_weight: float = Field(0.5, ge=0)
    patience: int = Field(10, ge=1)

    def make_head(self, n_spaces: int, prior: Tensor, **options: Any) -> NeighborHead:
        """Make the untrained head; variants with parts of their own override this."""
        return NeighborHead(n_spaces, prior, **options)

    def loss(self, output: HeadOutput, rows: "HeadRows") -> Tensor:
        """Weighted mean NLL of rows, of the whole prediction and of the neighbors alone."""
        loss = rows.loss(output.log_proba)
        if self.neighbor_weight:
            loss = loss + self.neighbor_weight * rows.loss(output.neighbor_log_proba)
        return (loss * rows.weight).sum() / rows.weight.sum().clamp_min(1e-12)

    def for_rows(self, n_rows: int) -> "HeadSteps":
        """Epochs and batch size for so many training rows."""
        return HeadSteps(
            self.epochs or (12 if n_rows > _LARGE else 30),
            self.batch_size or min(512, max(64, n_rows // 8)),
        )


class HeadSteps(NamedTuple):
    """How long a head is trained, and on how many rows at once."""

    epochs: int
    batch_size: int


def _unchanged(log_proba: Tensor) -> Tensor:
    return log_proba


@dataclass(frozen=True)
class HeadRows:
    """Neighborhoods, base predictions and labels of the rows a head is trained on.

    Parameters
    ----------
    spaces : list of Neighborhood
        One a key space, each over the same n rows.
    base_log_proba : Tensor of shape (n, C)
    labels : int64 Tensor of shape (n,)
    weight : Tensor of shape (n,)
        Non-negative weight of each row's loss.
    given_log_proba : callable, optional
        Turns log-probabilities (n, C) of the classes that the head predicts into those of
        `labels`, which the loss is of. By default the labels are these classes.
    """

    spaces: list[Neighborhood]
    base_log_proba: Tensor
    labels: Tensor
    weight: Tensor
    given_log_proba: Callable[[Tensor], Tensor] = _unchanged

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> "HeadRows":
        """Return some of the rows."""
        return HeadRows(
            [seen.take(rows) for seen in self.spaces],
            self.base_log_proba[rows],
            self.labels[rows],
            self.weight[rows],
            self.given_log_proba,
        )

    def loss(self, log_proba: Tensor) -> Tensor:
        """NLL of each row's label, (n,), from predicted log-probabilities (n, C)."""
        return F.nll_loss(self.given_log_proba(log_proba), self.labels, reduction="none")


def train_head(
    head: NeighborHead,
    train: HeadRows,
    held_out: HeadRows,
    config: HeadConfig,
    *,
    seed: int,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Fit `head` in place; it ends in eval mode with the weights of the lowest held-out NLL.

    The untrained head, which is distance weighting, counts as epoch 0.

    Parameters
    ----------
    head : NeighborHead
        On the device of the rows.
    train, held_out : HeadRows
        Distinct rows.
    config : HeadConfig
    seed : int
        Decides the batches; torch's global random state is not touched.
    progress : callable, optional
        Called with each epoch's record.

    Returns
    -------
    history : list of dict
        epoch, train_loss, held_out_nll.
    """
    steps = config.for_rows(len(train))
    with _few_threads(steps.batch_size * train.spaces[0].labels.shape[1]):
        return _descend(head, train, held_out, config, steps, seed, progress)


@contextmanager
def _few_threads(work: int) -> Iterator[None]:
    """One thread for steps so small that handing them out costs more than doing them."""
    before = torch.get_num_threads()
    if work < _SMALL_STEP:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _descend(
    head: NeighborHead,
    train: HeadRows,
    held_out: HeadRows,
    config: HeadConfig,
    steps: HeadSteps,
    seed: int,
    progress: Callable[[dict[str, Any]], None] | None,
) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    epochs, size = steps
    n_batches = min(config.steps_per_epoch, -(-len(train) // size))
    optimizer, schedule = _optimizer(head, config, epochs * n_batches)
    best_nll, best_epoch = held_out_nll(head, held_out), 0
    best = _snapshot(head)
    history: list[dict[str, Any]] = [{"epoch": 0, "train_loss": None, "held_out_nll": best_nll}]
    try:
        for epoch in range(1, epochs + 1):
            # Drawn on the CPU: the same batches on every device.
            order = torch.randperm(len(train), generator=generator).to(train.labels.device)
            losses = []
            for rows in order[: size * config.steps_per_epoch].split(size):
                batch = train.take(rows)
                loss = config.loss(head(batch.spaces, batch.base_log_proba), batch)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                losses.append(float(loss.detach()))
            nll = held_out_nll(head, held_out)
            record = {"epoch": epoch, "train_loss": sum(losses) / len(losses), "held_out_nll": nll}
            history.append(record)
            if progress is not None:
                progress(record)
            if nll < best_nll - 1e-5:
                best_nll, best_epoch, best = nll, epoch, _snapshot(head)
            elif epoch - best_epoch >= config.patience:
                break
    except KeyboardInterrupt:
        warnings.warn(
            f"The attention head's training was interrupted after {len(history) - 1} epochs; its "
            f"best weights so far (epoch {best_epoch}) are kept.",
            UserWarning,
            stacklevel=2,
        )
    head.load_state_dict(best)
    head.eval()
    return history


def _optimizer(
    head: NeighborHead, config: HeadConfig, n_steps: int
) -> tuple[torch.optim.Optimizer, LRScheduler]:
    """AdamW with a rate of its own for the gates, both falling as half a cosine."""
    gates = head.pool_parameters
    is_gate = {id(gate) for gate in gates}
    others = [parameter for parameter in head.parameters() if id(parameter) not in is_gate]
    optimizer = torch.optim.AdamW(
        [
            {"params": others, "lr": config.lr, "weight_decay": config.weight_decay},
            {"params": gates, "lr": config.gate_lr, "weight_decay": 0.0},
        ],
        fused=True,
    )
    factor = partial(learning_rate_factor, total_steps=n_steps, warmup_steps=0, floor=_LAST_RATE)
    return optimizer, LambdaLR(optimizer, factor)


def _snapshot(head: NeighborHead) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in head.state_dict().items()}


def predict_with_head(
    head: NeighborHead, spaces: list[Neighborhood], base_log_proba: Tensor
) -> HeadOutput:
    """Predict in chunks without gradient."""
    with torch.no_grad():
        parts = [
            head([seen.take(rows) for seen in spaces], base_log_proba[rows])
            for rows in torch.arange(len(base_log_proba), device=base_log_proba.device).split(
                _CHUNK
            )
        ]
    width = max(part.log_proba.shape[1] for part in parts)
    return HeadOutput(
        torch.cat([_widened(part.log_proba, width) for part in parts]),
        torch.cat([_widened(part.neighbor_log_proba, width) for part in parts]),
        tuple(torch.cat(list(pieces)) for pieces in zip(*(p.weights for p in parts), strict=True)),
        torch.cat([part.null_mass for part in parts]),
    )


def _widened(log_proba: Tensor, width: int) -> Tensor:
    # A chunk none of whose neighbors carries a new class does not name it: its share is nothing.
    return F.pad(log_proba, (0, width - log_proba.shape[1]), value=NEGLIGIBLE)


def held_out_nll(head: NeighborHead, rows: HeadRows) -> float:
    """Weighted NLL of the pooled prediction, in nats."""
    log_proba = predict_with_head(head, rows.spaces, rows.base_log_proba).log_proba
    loss = rows.loss(log_proba)
    return float((loss * rows.weight).sum() / rows.weight.sum().clamp_min(1e-12))
