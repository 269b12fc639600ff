"""Gradients of a batch: in one piece, in pieces where memory is short, over several processes."""

import warnings

import torch
from torch import Tensor

from nearwise.nn import NeighborNetwork
from nearwise.training.config import TrainConfig
from nearwise.training.oom import is_out_of_memory, release_memory
from nearwise.training.processes import Processes
from nearwise.training.rows import TrainingRows
from nearwise.training.sampling import Batch, split_batch
from nearwise.training.steps import KeyCache, step_losses


class BatchGradients:
    """Leaves the gradient of a batch's loss in the network's parameters.

    A batch that does not fit into memory is split, from then on, into twice as many pieces whose
    gradients add up; in-batch terms and normalisation layers then see a piece at a time.

    Parameters
    ----------
    network : NeighborNetwork
    rows : TrainingRows
    config : TrainConfig
    generator : torch.Generator
        On the CPU; decides views, augmentation and MixUp.
    cache : KeyCache or None
    processes : Processes
        Each takes its share of every batch.

    Attributes
    ----------
    n_pieces : int
        Pieces a batch is split into.
    """

    def __init__(
        self,
        network: NeighborNetwork,
        rows: TrainingRows,
        config: TrainConfig,
        generator: torch.Generator,
        cache: KeyCache | None,
        processes: Processes,
    ) -> None:
        self._network, self._rows, self._config = network, rows, config
        self._generator, self._cache, self._processes = generator, cache, processes
        self.n_pieces = 1

    def take(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Return the terms of the loss, and the whole as "loss"; gradients are those of it.

        `step` counts from the start of the run and decides what several processes draw.
        With several processes each returns the part of its own rows; their sum is the whole.
        """
        processes = self._processes
        if not processes.several:
            return self._take_own(batch, batch, self._generator)
        # Views and MixUp are drawn by each for itself. The main generator stays as it is, so that
        # the batches are the same everywhere.
        own = torch.Generator()
        own.set_state(self._generator.get_state())
        seed = int(torch.randint(2**31 - 1, (), generator=own))
        own.manual_seed(seed + step * processes.size + processes.rank)
        parts = self._take_own(split_batch(batch, processes.size)[processes.rank], batch, own)
        processes.sum_gradients(self._network)
        return parts

    def _take_own(
        self, batch: Batch, whole: Batch, generator: torch.Generator
    ) -> dict[str, Tensor]:
        while True:
            state = generator.get_state()
            try:
                return self._add_pieces(batch, whole, generator)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or not self._can_split(len(batch.queries)):
                    raise
            self.n_pieces *= 2
            generator.set_state(state)
            self._network.zero_grad(set_to_none=True)
            release_memory()
            warnings.warn(
                f"Out of memory in a training step of {len(batch.queries)} rows; batches go on in "
                f"{self.n_pieces} pieces whose gradients are added up.",
                UserWarning,
                stacklevel=6,
            )

    def _can_split(self, n_queries: int) -> bool:
        # Normalisation layers need two rows; other processes would wait for us at the cache; and
        # without a cache every piece encodes all candidates, which saves nothing.
        waits = self._processes.several and self._cache is not None
        many = self._cache is None and bool(self._config.knn_weight)
        return n_queries >= 4 * self.n_pieces and not waits and not many

    def _add_pieces(
        self, batch: Batch, whole: Batch, generator: torch.Generator
    ) -> dict[str, Tensor]:
        config, means = self._config, dict[str, Tensor]()
        self._network.zero_grad(set_to_none=True)
        for piece in split_batch(batch, self.n_pieces):
            parts = step_losses(self._network, self._rows, piece, config, generator, self._cache)
            loss = torch.stack(
                [getattr(config, f"{name}_weight") * part for name, part in parts.items()]
            ).sum()
            share = self._share(piece, whole)
            (loss if share == 1 else share * loss).backward()
            for name, value in {"loss": loss, **parts}.items():
                part = value.detach() if share == 1 else share * value.detach()
                means[name] = means[name] + part if name in means else part
        return means

    def _share(self, piece: Batch, whole: Batch) -> float:
        """Weight of a piece's queries in the mean over the whole batch."""
        if len(piece.queries) == len(whole.queries):
            return 1.0
        weight = self._rows.sample_weight
        if weight is None:
            return len(piece.queries) / len(whole.queries)
        own, total = (float(weight[one.queries.to(weight.device)].sum()) for one in (piece, whole))
        return own / total if total else 0.0
