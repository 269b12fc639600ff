"""Training loop: epochs, evaluation, weight averaging, resuming, interruption."""

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearwise.functional.devices import keeping_freed_memory
from nearwise.training.checkpoint import (
    TrainingState,
    content_hash,
    load_checkpoint,
    save_checkpoint,
)
from nearwise.training.encoding import autocast
from nearwise.training.objective import Objective, Parts, Record
from nearwise.training.schedule import copied_state
from nearwise.training.settings import EngineConfig
from nearwise.warn import warn_user

Progress = Callable[[Record], None]

_LOOK_EVERY = 50  # steps between checks that the loss is finite; each waits for the device


@dataclass(frozen=True)
class TrainingResult:
    """Result of a run; the weights are in the model itself.

    Attributes
    ----------
    history : list of dict
        One record per epoch. By default, unless the objective changes it: epoch (from 1), train
        (means over steps of the loss's terms), evaluation (result of `evaluate`; empty if not
        called), lr (of the last step), seconds (of training and evaluation), train_seconds.
    best_epoch : int
        Epoch of the model's weights: the best monitored one (0 if training never improved on the
        start), or the last.
    best_value : float or None
        The monitored value of that epoch.
    monitored : list of float
        Monitored values in order, beginning with the untrained model if it is evaluated.
    interrupted : bool
        Whether the user stopped the run; the steps after the last whole epoch are then lost.
    """

    history: list[Record]
    best_epoch: int
    best_value: float | None
    monitored: list[float]
    interrupted: bool


class NotFiniteError(ValueError):
    """Loss or weights are no longer finite; `result` is the result of the run so far."""

    def __init__(self, message: str, result: TrainingResult) -> None:
        super().__init__(message)
        self.result = result


@torch.enable_grad()
def train_epochs(
    objective: Objective,
    config: EngineConfig,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    monitor: str | None = None,
    checkpoint: str | Path | None = None,
    fingerprint: str = "",
    progress: Progress | None = None,
    resumed: Callable[[list[Record]], None] | None = None,
) -> TrainingResult:
    """Train an objective's model in place; it ends in eval mode with its best or last weights.

    Parameters
    ----------
    objective : Objective
    config : EngineConfig
    seed : int
        Seed of batches, draws of the loss, and dropout. torch's global random state is
        unchanged.
    device : torch.device or str, default="cpu"
        Device of the run; the model is moved there.
    monitor : str, optional
        Name of an evaluated value; the epoch with the lowest value is kept, with ``"-accuracy"``
        that of the highest accuracy. Default: the last epoch is kept.
    checkpoint : path of a folder, optional
        Written at the end of epochs. If it exists, the run resumes from it, with the result of an
        uninterrupted run.
    fingerprint : str, default=""
        Hash of further inputs of the run, such as its data, besides initial weights, settings and
        seed. A checkpoint with another fingerprint raises ValueError.
    progress : callable, optional
        Called with each epoch's record. Raising KeyboardInterrupt there ends the run.
    resumed : callable, optional
        Called once with the records of a checkpoint if the run resumes from one.

    Returns
    -------
    result : TrainingResult

    Raises
    ------
    ValueError
        If arguments do not fit together, the checkpoint is of another run, or the loss or the
        weights are no longer finite (`NotFiniteError`). Then the last checkpoint stays, and the
        model has the best weights so far, or without `monitor` those of the last complete epoch.

    Warns
    -----
    UserWarning
        If the run is interrupted.
    """
    if objective.n_rows < 1:
        raise ValueError(f"n_rows={objective.n_rows} leaves nothing to train on.")
    device = torch.device(device)
    objective.model.to(device)
    interrupted = False
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        keeping_freed_memory(),
    ):
        run = _Run(objective, config, seed, device, monitor, checkpoint)
        run.resume(fingerprint)
        if resumed is not None and run.state.history:
            resumed(list(run.state.history))
        try:
            run.train(progress)
        except KeyboardInterrupt:
            interrupted = True
            best = "best weights so far (epoch {})" if run.state.best else "weights of epoch {}"
            warn_user(
                f"{objective.name} was interrupted in epoch {run.state.epoch + 1} of "
                f"{config.epochs}; the {best.format(run.best_epoch)} are kept."
            )
        finally:
            run.settle()
    return run.result(interrupted)


class _Run:
    """State of one run."""

    def __init__(
        self,
        objective: Objective,
        config: EngineConfig,
        seed: int,
        device: torch.device,
        monitor: str | None,
        checkpoint: str | Path | None,
    ) -> None:
        self.objective, self.model = objective, objective.model
        self.config, self.seed, self.device = config, seed, device
        self.monitor, self.checkpoint = monitor, checkpoint
        self.generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        # Made once, since a step of a small head takes only a millisecond.
        self.parameters = list(self.model.parameters())
        self.autocast = autocast(device, config.precision)
        self.no_autocast = autocast(device, "float32")
        self.optimizer = objective.make_optimizer(config)
        for group in self.optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "float16")
        self.clip = None if config.optimizer == "lookahead" else objective.gradient_clip
        steps = config.epochs * objective.steps_per_epoch(config)
        self.average = objective.average(config, steps)
        self.state = TrainingState()
        self.fingerprint = ""
        self.whole: dict[str, Tensor] = {}  # weights of the last complete epoch
        self.saved_epoch: int | None = None  # of the checkpoint
        self.saved_at = -math.inf

    @property
    def best_epoch(self) -> int:
        """Epoch of the kept weights."""
        return self.state.best_epoch if self.state.best else self.state.epoch

    def result(self, interrupted: bool = False) -> TrainingResult:
        """Collect the result of the run."""
        state = self.state
        return TrainingResult(
            state.history, self.best_epoch, state.best_value, state.monitored, interrupted
        )

    def train(self, progress: Progress | None) -> None:
        """Run the remaining epochs."""
        self._note_whole()
        if self.saved_epoch is None:
            self._start()
        while not self.state.finished:
            epoch = self.state.epoch + 1
            started = time.perf_counter()
            record = self._train_epoch(epoch)
            record["train_seconds"] = time.perf_counter() - started
            record["evaluation"] = self._evaluate(epoch)
            record["seconds"] = time.perf_counter() - started
            self._end_epoch(epoch, self.objective.record(record))
            if progress is not None:
                progress(self.state.history[-1])

    def _start(self) -> None:
        self.objective.start(self.generator)
        if self.average is not None:
            self.average.state = copied_state(self.model.state_dict())
        if self.objective.starts_judged:
            self._evaluate(0)
        self._note_whole()
        self._save()  # detects an unwritable folder before the first epoch

    def _end_epoch(self, epoch: int, record: Record) -> None:
        state, patience = self.state, self.config.patience
        self._note_whole()
        state.epoch = epoch
        state.history.append(record)
        out_of_patience = patience is not None and state.waited >= patience
        state.finished = out_of_patience or epoch >= self.config.epochs
        self._save()

    def _train_epoch(self, epoch: int) -> Record:
        if not self.objective.seeded_once:
            # Seeded in every epoch: a resumed run makes the same draws as an uninterrupted one.
            self.generator.manual_seed(_mixed(self.seed, epoch))
            torch.manual_seed(_mixed(self.seed, -epoch))
        self.model.train()
        n_batches = self.objective.steps_per_epoch(self.config)
        values: dict[str, list[Tensor]] = {}
        factor = 1.0
        batches = self.objective.batches(epoch, self.config, self.generator)
        for step, batch in enumerate(batches, start=(epoch - 1) * n_batches):
            factor = self.objective.rate(self.config, step, n_batches, self.state.monitored)
            for name, value in self._step(batch, step, factor).items():
                values.setdefault(name, []).append(value)
            if len(values["loss"]) % _LOOK_EVERY == 0:
                self._refuse_bad(values["loss"], n_batches)
        self._refuse_bad(values["loss"], n_batches)
        self._refuse_bad_weights()
        means = {name: self._mean(steps) for name, steps in values.items()}
        return {"epoch": epoch, "train": means, "lr": self.config.lr * factor}

    def _step(self, batch: Any, step: int, factor: float) -> Parts:
        """Take one step, and return the terms of the loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor * group.get("lr_factor", 1.0)
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast:
            parts = self.objective.gradients(batch, self.generator, step, self._backward)
        if self.clip is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average is not None:
            self.average.update(step)
        return {name: value.detach() for name, value in parts.items()}

    def _backward(self, loss: Tensor) -> None:
        with self.no_autocast:  # backward in the precision of the forward pass
            self.scaler.scale(loss).backward()

    def _mean(self, values: Sequence[Tensor]) -> float:
        return float(torch.stack(list(values)).float().cpu().double().mean())

    def _refuse_bad(self, losses: Sequence[Tensor], n_batches: int) -> None:
        start = (len(losses) - 1) // _LOOK_EVERY * _LOOK_EVERY  # earlier losses were checked
        finite = torch.stack(list(losses[start:])).isfinite()
        if not finite.all():
            first = start + int((~finite).nonzero()[0, 0])
            self._stop(f"training loss is no longer finite in step {first + 1} of {n_batches}")

    def _refuse_bad_weights(self) -> None:
        """Stop if weights are not finite after the last step, before evaluation and saving."""
        kinds = (p.detach() for p in self.model.parameters() if p.is_floating_point())
        if not bool(torch.stack([tensor.isfinite().all() for tensor in kinds]).all()):
            self._stop("weights are no longer finite after the last step")

    def _stop(self, fault: str) -> None:
        saved = ""
        if self.saved_epoch is not None:
            saved = f" The checkpoint in {self.checkpoint} is of epoch {self.saved_epoch}."
        raise NotFiniteError(
            f"The {fault} of epoch {self.state.epoch + 1}. Lower lr, lengthen the warm-up, look "
            "for extreme values in the data, or take bfloat16 where the precision is float16."
            f"{saved}",
            self.result(),
        )

    def _evaluate(self, epoch: int) -> dict[str, float]:
        """Evaluate the epoch if it is due, and note whether it is the best."""
        if epoch != self.config.epochs and not self.objective.evaluation_due(epoch):
            return {}
        with self._averaged():
            self.model.eval()
            with torch.no_grad():
                found = self.objective.evaluate(epoch)
                values = {name: float(value) for name, value in found.items()}
            if self.monitor is not None:
                self._note_best(epoch, _monitored_value(self.monitor, values))
        return values

    def _note_best(self, epoch: int, value: float) -> None:
        state = self.state
        state.monitored.append(value)
        best = math.inf if state.best_value is None else state.best_value
        if math.isfinite(value) and value < best - self.objective.min_gain:
            state.best_value, state.best_epoch, state.waited = value, epoch, 0
            state.best = copied_state(self.model.state_dict())
        else:
            state.waited += 1

    def settle(self) -> None:
        """Load the kept weights into the model, if any were noted."""
        kept = self.state.best or self.whole
        if kept:
            self.model.load_state_dict(kept)
        self.model.eval()

    def _note_whole(self) -> None:
        """Copy the state after an epoch, as later steps may be interrupted or diverge."""
        if self.state.best:
            return  # the best weights are kept instead
        with self._averaged():
            self.whole = copied_state(self.model.state_dict())

    def _averaged(self) -> AbstractContextManager[None]:
        """Return a context with the weights to evaluate and keep."""
        return nullcontext() if self.average is None else self.average.applied()

    def _save(self) -> None:
        passed = time.monotonic() - self.saved_at
        due = self.state.finished or self.objective.checkpoint_due(self.state.epoch, passed)
        if self.checkpoint is None or not due:
            return
        extra = {f"objective/{name}": value for name, value in self.objective.state().items()}
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
        self.saved_epoch, self.saved_at = self.state.epoch, time.monotonic()

    def resume(self, fingerprint: str) -> None:
        """Restore the checkpoint, if there is one."""
        if self.checkpoint is not None:
            rows, settings = self.objective.n_rows, self.config.decides()
            deciding = [fingerprint, rows, self.seed, self.monitor, settings]
            self.fingerprint = content_hash(deciding, self.model.state_dict())
            self._load()

    def _load(self) -> None:
        assert self.checkpoint is not None  # the caller ensures it
        found = load_checkpoint(
            self.checkpoint, self.fingerprint, self.model, self.optimizer, self.generator
        )
        if found is None:
            return
        self.state, extra = found
        self.saved_epoch = self.state.epoch
        self.objective.load_state(_named(extra, "objective/"))
        if self.average is not None:
            self.average.state = _named(extra, "average/")
        if "scale" in extra:
            scale, tracker = extra["scale"].tolist()
            changed = {"scale": scale, "_growth_tracker": int(tracker)}
            self.scaler.load_state_dict({**self.scaler.state_dict(), **changed})


def minimize(parameters: Sequence[Tensor], loss: Callable[[], Tensor]) -> None:
    """Minimise a smooth loss of few parameters in place by full-batch L-BFGS.

    `parameters` are leaves that require a gradient; `loss()` returns the scalar at their values.
    """
    optimizer = torch.optim.LBFGS(parameters, max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Any:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)


def _monitored_value(monitor: str, values: dict[str, float]) -> float:
    """Return the value to minimise: that of `monitor`, negated after a leading minus."""
    name = monitor.removeprefix("-")
    if name not in values:
        raise ValueError(
            f"monitor={monitor!r} names {name!r}, which was not "
            f"evaluated. Evaluated: {', '.join(values) or 'nothing'}."
        )
    return -values[name] if monitor.startswith("-") else values[name]


def _named(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors with a prefix, without the prefix in their names."""
    return {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}


def _mixed(seed: int, epoch: int) -> int:
    """Return a seed of 63 bits for one epoch of one run."""
    digest = hashlib.sha256(f"{seed}/{epoch}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
