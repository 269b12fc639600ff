"""The training loop: epochs, held-out NLL, early stopping, resuming, interruption."""

import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearwise.nn import NeighborNetwork, vote_nll
from nearwise.training.checkpoint import (
    TrainingState,
    load_checkpoint,
    run_fingerprint,
    save_checkpoint,
)
from nearwise.training.checks import check_shares, check_training
from nearwise.training.config import TrainConfig
from nearwise.training.encode import predict_head, predict_neighbors
from nearwise.training.gradients import BatchGradients
from nearwise.training.hard_negatives import hard_row_weights, neighbor_disagreement
from nearwise.training.key_cache import KeyCache, encode_shared
from nearwise.training.processes import Processes, join_processes
from nearwise.training.rows import TrainingRows
from nearwise.training.sampling import class_balance, combined, count_batches, epoch_batches
from nearwise.training.scale import fit_start_scale
from nearwise.training.schedule import make_optimizer, set_learning_rate

Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class TrainingResult:
    """What a run leaves behind; the best weights are in the network itself.

    Attributes
    ----------
    history : list of dict
        One record an epoch: epoch (from 1), train_loss, parts (dict of the loss's terms),
        held_out_nll (None where not evaluated), lr, scale, seconds.
    best_epoch : int
        Epoch whose weights the network holds; 0 where training never improved on the start.
    best_nll : float or None
        Its held-out NLL.
    interrupted : bool
        Whether the user broke the run off.
    """

    history: list[dict[str, Any]]
    best_epoch: int
    best_nll: float | None
    interrupted: bool


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
) -> TrainingResult:
    """Train `network` in place; it ends in eval mode with its best weights.

    Every query is left out of its own neighbors by id, in training and in scoring. With
    `held_out` rows the best epoch is the one with the lowest NLL on them, scored against the
    training rows, the untrained network being epoch 0; without, the last.

    Under `torchrun`, or where torch.distributed is initialised, each process takes its share of
    every batch and all end with the same weights; each needs the same rows, settings and seed, and
    the first one writes checkpoints.

    Parameters
    ----------
    network : NeighborNetwork
    train : TrainingRows
        At least 2 rows with unique ids.
    held_out : TrainingRows or None
        Rows for early stopping; their ids must not occur in `train`.
    config : TrainConfig
    seed : int
        Decides batches, candidates, MixUp and dropout. torch's global random state is left as
        it was.
    device : torch.device or str, default="cpu"
    checkpoint : path of a folder, optional
        Written at the end of epochs; where it exists already the run goes on from it, to the
        same result as an unbroken run.
    progress : callable, optional
        Called with each epoch's record. Raising KeyboardInterrupt there ends the run.

    Returns
    -------
    result : TrainingResult

    Raises
    ------
    ValueError
        If rows, ids, labels or settings do not fit, or the loss is no longer finite.

    Warns
    -----
    UserWarning
        If the run is interrupted: the best weights so far are kept. If a step ran out of memory:
        batches go on in smaller pieces.
    """
    check_training(network, train, held_out, config)
    processes, device = join_processes(torch.device(device))
    check_shares(len(train), config.batch_size, processes.size)
    network.to(device)
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        _prepared(network, config),
    ):
        torch.manual_seed(seed)
        run = _Run(network, train, held_out, config, seed, device, checkpoint, processes)
        interrupted = False
        try:
            run.train(progress)
        except KeyboardInterrupt:
            interrupted = True
            warnings.warn(
                f"Training was interrupted in epoch {run.state.epoch + 1} of {config.epochs}; "
                f"the best weights so far (epoch {run.best_epoch}) are kept.",
                UserWarning,
                stacklevel=2,
            )
    if run.state.best:
        network.load_state_dict(run.state.best)
    network.eval()
    return TrainingResult(run.state.history, run.best_epoch, run.state.best_nll, interrupted)


@contextmanager
def _prepared(network: NeighborNetwork, config: TrainConfig) -> Iterator[None]:
    """Compile the embedder and change the memory format inside, where asked for."""
    trunk = network.embedder.trunk
    if config.channels_last:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if config.compile:
        trunk.compile()
    try:
        yield
    finally:
        if config.compile:
            trunk._compiled_call_impl = None
        if config.channels_last:
            network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


class _Run:
    """The moving parts of one run."""

    def __init__(
        self,
        network: NeighborNetwork,
        train: TrainingRows,
        held_out: TrainingRows | None,
        config: TrainConfig,
        seed: int,
        device: torch.device,
        checkpoint: str | Path | None,
        processes: Processes,
    ) -> None:
        self.network = network
        self.processes = processes
        self.seed = seed
        self.rows = train.to(device)
        network.embedder.fit_inputs(self.rows.x_num)
        self.held_out = None if held_out is None else held_out.to(device)
        self.config = config
        self.checkpoint = checkpoint
        self.generator = torch.Generator().manual_seed(seed)
        self.scored_against = self._scored_against(seed)
        self.optimizer = make_optimizer(network, config)
        self.state = TrainingState()
        self.row_weights: Tensor | None = None
        self.balance = class_balance(train.labels, config.query_balance)
        self.candidate_weights = class_balance(train.labels, config.candidate_balance)
        self.cache: KeyCache | None = None
        self.fingerprint = ""
        self.started = False
        if checkpoint is not None:
            self.fingerprint = run_fingerprint(network, train, held_out, config, seed)
        found = self._resume()
        if config.candidate_keys == "cached" and config.knn_weight:
            self.cache = KeyCache(
                network,
                self.rows,
                config.cache_momentum,
                precision=config.precision,
                processes=processes,
            )
            if "cache" in found:
                self.cache.keys = found["cache"]
        self.gradients = BatchGradients(
            network, self.rows, config, self.generator, self.cache, processes
        )
        if "n_pieces" in found:
            self.gradients.n_pieces = int(found["n_pieces"])
        processes.wait()  # none may write a checkpoint before all have looked for one

    @property
    def best_epoch(self) -> int:
        """Epoch whose weights are kept: the best one, or the last without held-out rows."""
        return self.state.best_epoch if self.state.best else self.state.epoch

    def train(self, progress: Progress | None) -> None:
        """Go through the epochs that are left."""
        if not self.started:
            self._start()
        while not self.state.finished:
            started = time.perf_counter()
            record = self._train_epoch()
            record["held_out_nll"] = self._evaluate(record["epoch"])
            record["seconds"] = time.perf_counter() - started
            self.state.epoch = record["epoch"]
            self.state.history.append(record)
            self._note_best(record["epoch"], record["held_out_nll"])
            self._end_or_go_on()
            self._save()
            if progress is not None:
                progress(record)

    def _start(self) -> None:
        """Fit the starting scale, note how good the untrained network is, and save that."""
        network = self.network
        for tensor in network.state_dict().values():
            self.processes.from_first(tensor)
        if self.config.fit_scale and self.config.knn_weight and network.log_scale.requires_grad:
            fit_start_scale(network, self.rows, self.generator, self.config.precision)
        if self.held_out is not None:
            self._note_best(0, self._held_out_nll())
        # A folder that cannot be written to shows here, not after an epoch.
        self._save()

    def _train_epoch(self) -> dict[str, Any]:
        config, epoch = self.config, self.state.epoch
        self._select_hard_rows()
        if self.cache is not None and epoch % config.refresh_every == 0:
            self.cache.refresh_all()
        self.network.train()
        if self.processes.several:  # dropout: of its own in each, and the same after resuming
            here = epoch * self.processes.size + self.processes.rank
            torch.manual_seed(self.seed * 1_000_003 + here)
        totals: dict[str, Tensor] = {}
        steps = 0
        n_batches = count_batches(len(self.rows), config.batch_size)
        batches = epoch_batches(
            len(self.rows),
            config.batch_size,
            config.n_candidates,
            self.generator,
            combined(self.row_weights, self.balance),
            self.candidate_weights,
        )
        for batch in batches:
            step = epoch * n_batches + steps
            lr = set_learning_rate(self.optimizer, config, step, n_batches)
            for name, value in self.gradients.take(batch, step).items():
                totals[name] = totals.get(name, 0.0) + value
            self._descend()
            steps += 1
        self.processes.average_buffers(self.network)
        means = {name: float(self.processes.sum(total)) / steps for name, total in totals.items()}
        if not all(map(math.isfinite, means.values())):
            raise ValueError(
                f"The training loss is no longer finite in epoch {epoch + 1} ({means}). Lower lr, "
                "or look for extreme values in the columns."
            )
        return {
            "epoch": epoch + 1,
            "train_loss": means.pop("loss"),
            "parts": means,
            "lr": lr,
            "scale": float(self.network.scale.detach()),
        }

    def _descend(self) -> None:
        if self.config.gradient_clip is not None:
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.gradient_clip)
        self.optimizer.step()

    def _select_hard_rows(self) -> None:
        config, epoch = self.config, self.state.epoch
        if config.hard_negative_weight == 1 or epoch == 0:
            return
        if self.row_weights is not None and epoch % config.hard_negative_every:
            return
        disagreement = neighbor_disagreement(
            self._keys(self.rows),
            self.rows.labels,
            self.rows.row_ids,
            self.network.n_classes,
            config.hard_negative_neighbors,
        )
        weights = hard_row_weights(
            disagreement,
            fraction=config.hard_negative_fraction,
            weight=config.hard_negative_weight,
        )
        self.row_weights = self.processes.from_first(weights)

    def _keys(self, rows: TrainingRows) -> Tensor:
        return encode_shared(self.network, rows, self.config.precision, self.processes)

    def _scored_against(self, seed: int) -> TrainingRows:
        """Training rows that held-out rows are scored against, the same in every epoch."""
        limit = self.config.held_out_candidates
        if limit is None or limit >= len(self.rows):
            return self.rows
        order = torch.randperm(len(self.rows), generator=torch.Generator().manual_seed(seed))
        return self.rows.take(order[:limit])

    def _evaluate(self, epoch: int) -> float | None:
        last = epoch == self.config.epochs
        if self.held_out is None or (epoch % self.config.evaluate_every and not last):
            return None
        return self._held_out_nll()

    def _held_out_nll(self) -> float:
        assert self.held_out is not None  # callers see to it
        keys = self._keys(self.held_out)
        if self.config.monitored == "head":
            proba = predict_head(self.network, self.held_out, keys=keys).exp()
        else:
            proba = predict_neighbors(
                self.network,
                self.held_out,
                self.scored_against,
                query_keys=keys,
                memory_keys=self._keys(self.scored_against),
            )
        nll = vote_nll(proba, self.held_out.labels, sample_weight=self.held_out.sample_weight)
        return float(self.processes.from_first(nll))

    def _note_best(self, epoch: int, nll: float | None) -> None:
        state = self.state
        if nll is None:
            return
        if state.best_nll is not None and nll >= state.best_nll:
            state.waited += 1
            return
        state.best_nll, state.best_epoch, state.waited = nll, epoch, 0
        state.best = {
            name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()
        }

    def _end_or_go_on(self) -> None:
        state = self.state
        patience = self.config.patience
        out_of_patience = patience is not None and state.waited >= patience
        state.finished = out_of_patience or state.epoch >= self.config.epochs

    def _save(self) -> None:
        due = self.state.epoch % self.config.checkpoint_every == 0 or self.state.finished
        if self.checkpoint is None or not due or not self.processes.first:
            return
        extra = {}
        if self.row_weights is not None:
            extra["row_weights"] = self.row_weights
        if self.cache is not None and len(self.cache.keys):
            extra["cache"] = self.cache.keys
        if self.gradients.n_pieces > 1:
            extra["n_pieces"] = torch.tensor(self.gradients.n_pieces)
        save_checkpoint(
            self.checkpoint,
            self.fingerprint,
            self.state,
            self.network,
            self.optimizer,
            self.generator,
            extra,
        )

    def _resume(self) -> dict[str, Tensor]:
        """Go back to the checkpoint, if there is one, and return its further tensors."""
        if self.checkpoint is None:
            return {}
        found = load_checkpoint(
            self.checkpoint, self.fingerprint, self.network, self.optimizer, self.generator
        )
        if found is None:
            return {}
        self.state, extra = found
        self.started = True
        self.row_weights = extra.get("row_weights")
        return extra
