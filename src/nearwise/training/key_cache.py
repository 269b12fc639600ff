"""Keys of all training rows, kept from step to step."""

import torch
from torch import Tensor

from nearwise.nn import NeighborNetwork
from nearwise.training.encode import Precision, encode
from nearwise.training.processes import Processes
from nearwise.training.rows import TrainingRows


class KeyCache:
    """Keys of all training rows, for candidates outside the batch.

    Parameters
    ----------
    network : NeighborNetwork
    rows : TrainingRows
    momentum : float, default=0.0
        Share of the old key that stays when a seen row is refreshed.
    precision : {"float32", "bfloat16"}, default="float32"
        Of the embedder.
    processes : Processes, optional
        Those that train together: each computes its share of the keys and gets all.

    Attributes
    ----------
    keys : Tensor of shape (n, dim)
        Of each row; empty before the first `refresh_all`.
    """

    def __init__(
        self,
        network: NeighborNetwork,
        rows: TrainingRows,
        momentum: float = 0.0,
        *,
        precision: Precision = "float32",
        processes: Processes | None = None,
    ) -> None:
        self._network = network
        self._rows = rows
        self._precision: Precision = precision
        self._processes = processes or Processes()
        self.momentum = momentum
        self.keys = torch.empty(0, network.embedder.dim)

    def refresh_all(self) -> None:
        """Compute every key anew."""
        self.keys = encode_shared(self._network, self._rows, self._precision, self._processes)

    def refresh(self, positions: Tensor, keys: Tensor) -> None:
        """Move the keys of seen rows to `keys`, at unit length where the embedder has it.

        With several processes all of them call this, with rows of their own, or with none.
        """
        keys = keys.detach()
        if self._processes.several:
            positions = torch.cat(self._processes.gather(positions))
            keys = torch.cat(self._processes.gather(keys))
        mixed = self.momentum * self.keys[positions] + (1 - self.momentum) * keys
        if self._network.embedder.normalize:
            mixed = torch.nn.functional.normalize(mixed, dim=1)
        self.keys[positions] = mixed


def encode_shared(
    network: NeighborNetwork, rows: TrainingRows, precision: Precision, processes: Processes
) -> Tensor:
    """Keys of rows, as `encode`; of several processes each encodes its share and gets all."""
    if not processes.several:
        return encode(network, rows, precision=precision)
    share = torch.arange(len(rows)).tensor_split(processes.size)[processes.rank]
    return torch.cat(processes.gather(encode(network, rows.take(share), precision=precision)))
