"""One loop that trains any module: epochs, evaluation, averaging, resuming, interruption."""

import hashlib
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearwise.training.averaging import WeightAverage, copied_state
from nearwise.training.checkpoint import TrainingState, load_checkpoint, save_checkpoint
from nearwise.training.engine_settings import (
    EngineConfig,
    autocast_to,
    engine_optimizer,
    engine_rate,
)
from nearwise.training.sampling import count_batches

__all__ = ["BatchLoss", "EngineConfig", "EngineResult", "train_epochs"]

BatchLoss = Callable[[Tensor, torch.Generator, int], dict[str, Tensor]]
Evaluate = Callable[[int], dict[str, float]]
Progress = Callable[[dict[str, Any]], None]

_LOOK_EVERY = 50  # steps between looks at whether the loss is finite; each waits for the device


@dataclass(frozen=True)
class EngineResult:
    """What a run leaves behind; the weights are in the module itself.

    Attributes
    ----------
    history : list of dict
        One record an epoch: epoch (from 1), train (means of what `batch_loss` returned), evaluation
        (what `evaluate` returned; empty where it was not called), lr (of the last step), seconds
        (of training and evaluation), train_seconds.
    best_epoch : int
        Epoch whose weights the module holds: the best monitored one, or the last.
    interrupted : bool
        Whether the user broke the run off; the steps after the last whole epoch are then lost.
    """

    history: list[dict[str, Any]]
    best_epoch: int
    interrupted: bool


def train_epochs(
    model: nn.Module,
    batch_loss: BatchLoss,
    n_rows: int,
    config: EngineConfig,
    *,
    seed: int,
    device: torch.device | str,
    evaluate: Evaluate | None = None,
    monitor: str | None = None,
    checkpoint: str | Path | None = None,
    fingerprint: str = "",
    progress: Progress | None = None,
    resumed: Callable[[list[dict[str, Any]]], None] | None = None,
) -> EngineResult:
    """Train `model` in place; it ends in eval mode with its best weights, or its last.

    Parameters
    ----------
    model : nn.Module
        Moved to `device`.
    batch_loss : callable
        ``batch_loss(rows, generator, step)`` with `rows` an int64 Tensor (B,) on the CPU, a
        generator on the CPU that is the run's own, and the step counted from 0. Returns a dict of
        scalar tensors, whose "loss" is minimised; the others are reported. Called under autocast
        with the model in train mode.
    n_rows : int
        Rows to train on, at least 1.
    config : EngineConfig
    seed : int
        Decides the batches, what `generator` draws, and dropout. torch's global random state is
        left as it was.
    device : torch.device or str
    evaluate : callable, optional
        ``evaluate(epoch)`` after an epoch, without gradient and with the model in eval mode (and
        the averaged weights, where there are some); returns a dict of floats.
    monitor : str, optional
        Name of an evaluated value: the epoch where it is lowest is kept; ``"-accuracy"`` keeps the
        one where accuracy is highest. Default: the last epoch is kept.
    checkpoint : path of a folder, optional
        Written at the end of epochs; where it exists already the run goes on from it, to the same
        result as an unbroken run.
    fingerprint : str, default=""
        What decides the run beside the module's first weights, settings and seed, such as a hash
        of its data; a checkpoint with another one is refused.
    progress : callable, optional
        Called with each epoch's record. Raising KeyboardInterrupt there ends the run.
    resumed : callable, optional
        Called once with the records of a checkpoint, where the run goes on from one.

    Returns
    -------
    result : EngineResult

    Raises
    ------
    ValueError
        If arguments do not fit together, the checkpoint is of another run, or the loss or the
        weights are no longer finite; the message says where, the last checkpoint stays, and the
        model holds the best weights so far, or without `monitor` those of the last whole epoch.

    Warns
    -----
    UserWarning
        If the run is interrupted.
    """
    _check(n_rows, config, evaluate, monitor)
    device = torch.device(device)
    model.to(device)
    interrupted = False
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        _compiled(model, config),
    ):
        run = _Run(model, batch_loss, n_rows, config, seed, device, monitor, checkpoint)
        run.resume(fingerprint)
        if resumed is not None and run.state.history:
            resumed(list(run.state.history))
        try:
            run.train(evaluate, progress)
        except KeyboardInterrupt:
            interrupted = True
            warnings.warn(
                f"Training was interrupted in epoch {run.state.epoch + 1} of {config.epochs}; "
                f"the weights of epoch {run.best_epoch} are kept.",
                UserWarning,
                stacklevel=2,
            )
        finally:
            run.settle()
    return EngineResult(run.state.history, run.best_epoch, interrupted)


class _Run:
    """The moving parts of one run."""

    def __init__(
        self,
        model: nn.Module,
        batch_loss: BatchLoss,
        n_rows: int,
        config: EngineConfig,
        seed: int,
        device: torch.device,
        monitor: str | None,
        checkpoint: str | Path | None,
    ) -> None:
        self.model, self.batch_loss, self.n_rows = model, batch_loss, n_rows
        self.config, self.seed, self.device = config, seed, device
        self.monitor, self.checkpoint = monitor, checkpoint
        self.generator = torch.Generator()
        self.optimizer = engine_optimizer(model, config)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "float16")
        self.average = None if config.ema_decay is None else WeightAverage(model, config.ema_decay)
        self.state = TrainingState()
        self.fingerprint = ""
        self.whole: dict[str, Tensor] = {}  # weights of the last whole epoch
        self.saved_epoch: int | None = None  # of the checkpoint

    @property
    def best_epoch(self) -> int:
        """Epoch whose weights are kept."""
        return self.state.best_epoch if self.state.best else self.state.epoch

    def train(self, evaluate: Evaluate | None, progress: Progress | None) -> None:
        """Go through the epochs that are left."""
        self._note_whole()
        if self.state.epoch == 0:
            self._save()  # a folder that cannot be written to shows here, not after an epoch
        while not self.state.finished:
            epoch = self.state.epoch + 1
            started = time.perf_counter()
            record = self._train_epoch(epoch)
            record["train_seconds"] = time.perf_counter() - started
            record["evaluation"] = self._evaluate(evaluate, epoch)
            record["seconds"] = time.perf_counter() - started
            self._note_whole()
            self.state.epoch = epoch
            self.state.history.append(record)
            self.state.finished = epoch >= self.config.epochs
            self._save()
            if progress is not None:
                progress(record)

    def _train_epoch(self, epoch: int) -> dict[str, Any]:
        # Seeded afresh every epoch: a run that goes on draws what the unbroken one would have.
        self.generator.manual_seed(_mixed(self.seed, epoch))
        torch.manual_seed(_mixed(self.seed, -epoch))
        self.model.train()
        n_batches = count_batches(self.n_rows, self.config.batch_size)
        totals: dict[str, Tensor] = {}
        first_bad = torch.full((), -1, device=self.device)
        order = torch.randperm(self.n_rows, generator=self.generator)
        monitored, lr = self._monitored(), self.config.lr
        for i, rows in enumerate(order.tensor_split(n_batches)):
            step = (epoch - 1) * n_batches + i
            lr = engine_rate(self.config, step, n_batches, monitored)
            parts = self._step(rows, step, lr)
            for name, value in parts.items():
                totals[name] = totals.get(name, 0.0) + value * (len(rows) / self.n_rows)
            bad = ~torch.isfinite(parts["loss"]) & (first_bad < 0)
            first_bad = torch.where(bad, i, first_bad)
            if (i + 1) % _LOOK_EVERY == 0 or i + 1 == n_batches:
                self._refuse_bad(int(first_bad), n_batches)
        self._refuse_bad_weights()
        means = {name: float(total) for name, total in totals.items()}
        return {"epoch": epoch, "train": means, "lr": lr}

    def _step(self, rows: Tensor, step: int, lr: float) -> dict[str, Tensor]:
        """Take one step, and return what `batch_loss` reports."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        with autocast_to(self.device, self.config.precision):
            parts = self.batch_loss(rows, self.generator, step)
        if "loss" not in parts:
            raise ValueError(f"batch_loss must return a 'loss'; it returned {sorted(parts)}.")
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(parts["loss"]).backward()
        if self.config.gradient_clip is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.gradient_clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average is not None:
            self.average.update(step)
        return {name: value.detach().float() for name, value in parts.items()}

    def _refuse_bad(self, first_bad: int, n_batches: int) -> None:
        if first_bad >= 0:
            self._stop(f"training loss is no longer finite in step {first_bad + 1} of {n_batches}")

    def _refuse_bad_weights(self) -> None:
        """Refuse weights that the last step spoiled, before they are evaluated and saved."""
        kinds = (p.detach() for p in self.model.parameters() if p.is_floating_point())
        if not bool(torch.stack([tensor.isfinite().all() for tensor in kinds]).all()):
            self._stop("weights are no longer finite after the last step")

    def _stop(self, what: str) -> None:
        kept = ""
        if self.saved_epoch is not None:
            kept = f" The checkpoint in {self.checkpoint} is of epoch {self.saved_epoch}."
        raise ValueError(
            f"The {what} of epoch {self.state.epoch + 1}. Lower lr, lengthen the warm-up, or take "
            f"bfloat16 where the precision is float16.{kept}"
        )

    def _evaluate(self, evaluate: Evaluate | None, epoch: int) -> dict[str, float]:
        """Evaluate the epoch, where it is its turn, and note whether it is the best."""
        last = epoch == self.config.epochs
        if evaluate is None or (epoch % self.config.evaluate_every and not last):
            return {}
        with nullcontext() if self.average is None else self.average.applied():
            self.model.eval()
            with torch.no_grad():
                values = {name: float(value) for name, value in evaluate(epoch).items()}
            self._note_best(epoch, values)
        return values

    def _note_best(self, epoch: int, values: dict[str, float]) -> None:
        if self.monitor is None:
            return
        value = monitored_value(self.monitor, values)
        state = self.state
        if state.best_nll is not None and not value < state.best_nll:
            return
        if math.isfinite(value):
            state.best_nll, state.best_epoch = value, epoch
            state.best = copied_state(self.model.state_dict())

    def _monitored(self) -> list[float]:
        """List the monitored values of the evaluations so far."""
        if self.monitor is None:
            return []
        found = (record["evaluation"] for record in self.state.history)
        return [monitored_value(self.monitor, values) for values in found if values]

    def settle(self) -> None:
        """Give the module the weights that are kept."""
        self.model.load_state_dict(self.state.best or self.whole)
        self.model.eval()

    def _note_whole(self) -> None:
        """Copy what an epoch leaves behind: steps after it may be broken off or go astray."""
        own = self.model.state_dict() if self.average is None else self.average.state
        self.whole = copied_state(own)

    def _save(self) -> None:
        due = self.state.epoch % self.config.checkpoint_every == 0 or self.state.finished
        if self.checkpoint is None or not due:
            return
        extra: dict[str, Tensor] = {}
        if self.average is not None:
            extra |= {f"average/{name}": value for name, value in self.average.state.items()}
        if self.scaler.is_enabled():
            scaling = self.scaler.state_dict()
            extra["scale"] = torch.tensor([scaling["scale"], scaling["_growth_tracker"]])
        save_checkpoint(
            self.checkpoint,
            self.fingerprint,
            self.state,
            self.model,
            self.optimizer,
            self.generator,
            extra,
        )
        self.saved_epoch = self.state.epoch

    def resume(self, fingerprint: str) -> None:
        """Go back to the checkpoint, if there is one."""
        if self.checkpoint is None:
            return
        given = [fingerprint, self.n_rows, self.seed, self.monitor, self.config.decides()]
        self.fingerprint = _hash(self.model, given)
        found = load_checkpoint(
            self.checkpoint, self.fingerprint, self.model, self.optimizer, self.generator
        )
        if found is None:
            return
        self.state, extra = found
        self.saved_epoch = self.state.epoch
        if self.average is not None:
            self.average.state = {
                name.removeprefix("average/"): value
                for name, value in extra.items()
                if name.startswith("average/")
            }
        if "scale" in extra:
            scale, tracker = extra["scale"].tolist()
            changed = {"scale": scale, "_growth_tracker": int(tracker)}
            self.scaler.load_state_dict({**self.scaler.state_dict(), **changed})


def monitored_value(monitor: str, values: dict[str, float]) -> float:
    """Value that is to be low: that of `monitor`, negated where it starts with a minus.

    Raises
    ------
    ValueError
        If it was not evaluated.
    """
    name = monitor.removeprefix("-")
    if name not in values:
        raise ValueError(
            f"monitor={monitor!r} names {name!r}, but evaluated was {', '.join(values)}."
        )
    return -values[name] if monitor.startswith("-") else values[name]


@contextmanager
def _compiled(model: nn.Module, config: EngineConfig) -> Iterator[None]:
    """Compile the module's call inside, where asked for."""
    if config.compile:
        model.compile(mode=config.compile_mode)
    try:
        yield
    finally:
        if config.compile:
            model._compiled_call_impl = None


def _check(
    n_rows: int, config: EngineConfig, evaluate: Evaluate | None, monitor: str | None
) -> None:
    if n_rows < 1:
        raise ValueError(f"n_rows={n_rows} leaves nothing to train on.")
    if monitor is not None and evaluate is None:
        raise ValueError(f"monitor={monitor!r} needs evaluate, which gives the value.")
    if config.scheduler == "plateau" and monitor is None:
        raise ValueError("scheduler='plateau' goes by the monitored value; name one by monitor.")


def _mixed(seed: int, epoch: int) -> int:
    """Give a seed of 63 bits for one epoch of one run."""
    digest = hashlib.sha256(f"{seed}/{epoch}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def _hash(model: nn.Module, given: list[Any]) -> str:
    """Hash of the module's weights and of what else decides a run."""
    digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
