"""Training in several processes: `torchrun` starts them, each takes its share of every batch."""

import atexit
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Processes:
    """Rank of this process, from 0, among the `size` that train together.

    All hold the same weights and draw the same batches; after each step gradients are summed, so
    that all take the same step.
    """

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and decides."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        """Whether there are others."""
        return self.size > 1

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum `tensor` over the processes, in place."""
        if self.several:
            dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum the gradients of the processes in one message."""
        gradients = [p.grad for p in parameters if p.grad is not None] if self.several else []
        if not gradients:
            return
        flat = self.sum(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        for gradient, part in zip(
            gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True
        ):
            gradient.copy_(part.view(gradient.shape))

    def average_buffers(self, network: nn.Module) -> None:
        """Average running statistics, which every process takes of its own shares."""
        if not self.several:
            return
        for buffer in network.buffers():
            if buffer.is_floating_point():
                self.sum(buffer).div_(self.size)
            else:  # counts of steps
                self.from_first(buffer)

    def from_first(self, tensor: Tensor) -> Tensor:
        """Overwrite `tensor` with the first process' one."""
        if self.several:
            sent = tensor.contiguous()  # what channels-last convolutions are not
            dist.broadcast(sent, src=0)
            if sent is not tensor:
                tensor.copy_(sent)
        return tensor

    def gather(self, rows: Tensor) -> list[Tensor]:
        """Rows of all processes, by rank; their numbers may differ, their widths may not."""
        if not self.several:
            return [rows]
        counts = torch.zeros(self.size, dtype=torch.int64, device=rows.device)
        counts[self.rank] = len(rows)
        self.sum(counts)
        padded = rows.new_zeros(int(counts.max()), *rows.shape[1:])
        padded[: len(rows)] = rows
        everything = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(everything, padded)
        return [part[:count] for part, count in zip(everything, counts.tolist(), strict=True)]

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.several:
            dist.barrier()


def join_processes(device: torch.device) -> tuple[Processes, torch.device]:
    """Join the processes that `torchrun` started, and choose this one's device.

    "cuda" without a number becomes the device of ``LOCAL_RANK``.
    """
    if not dist.is_available():
        return Processes(), device
    started = int(os.environ.get("WORLD_SIZE", "1")) > 1 and "MASTER_ADDR" in os.environ
    if not dist.is_initialized() and not started:
        return Processes(), device
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(dist.destroy_process_group)
    return Processes(dist.get_rank(), dist.get_world_size()), device
