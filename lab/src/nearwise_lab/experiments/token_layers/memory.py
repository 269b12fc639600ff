"""Peak memory of one pass of a layer, each in a process of its own, and its curve against N."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch

from nearwise_lab.experiments.measure import MIB, PeakMemory
from nearwise_lab.experiments.token_layers.choices import LayerChoice, LayerShape, layer_choices

Pass = Literal["forward", "forward_backward"]
PASSES: tuple[Pass, ...] = get_args(Pass)


@dataclass(frozen=True)
class MemoryPoint:
    """Peak memory of a layer at one number of tokens.

    Attributes
    ----------
    name : str
    tokens : int
    mib : float or None
        MiB above what the input and weights take; None where it was not run.
    note : str
        Why it was not run.
    """

    name: str
    tokens: int
    mib: float | None
    note: str = ""


def peak_memory(
    choice: LayerChoice,
    shape: LayerShape,
    passes: Sequence[Pass] = PASSES,
    *,
    device: str = "cpu",
    threads: int = 1,
    timeout: float | None = None,
) -> dict[Pass, float]:
    """Measure the peak memory of a layer's passes.

    On a CPU in a fresh process, by the kernel's high-water mark of resident memory from just
    before a pass; code is loaded and compiled by a small pass before. On a GPU by torch's
    allocator, in this process.

    Parameters
    ----------
    choice : LayerChoice
    shape : LayerShape
    passes : sequence of {"forward", "forward_backward"}
        In this order; without a backward pass no gradient is prepared.
    device : str, default="cpu"
    threads : int, default=1
        Of torch, on a CPU.
    timeout : float, optional
        Seconds.

    Returns
    -------
    mib : dict of str to float
        MiB above the input and the weights, by pass.

    Raises
    ------
    RuntimeError
        If the process fails or takes longer than `timeout`.
    """
    if torch.device(device).type == "cuda":
        return _cuda_peaks(choice, shape, passes, device)
    task = {
        "choice": choice.as_dict(),
        "shape": asdict(shape),
        "passes": list(passes),
        "threads": threads,
    }
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), str(threads))
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__, json.dumps(task)],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{choice.name} took longer than {timeout} seconds.") from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise RuntimeError(f"The memory of {choice.name} was not measured: {last[0]}")
    found: dict[Pass, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def memory_curve(
    choices: Sequence[LayerChoice],
    tokens: Sequence[int],
    *,
    shape: LayerShape,
    device: str = "cpu",
    points: Callable[[Sequence[Any]], Iterable[Any]] = iter,
) -> list[MemoryPoint]:
    """Measure the peak memory of forward and backward pass against the number of tokens.

    Parameters
    ----------
    choices : sequence of LayerChoice
    tokens : sequence of int
    shape : LayerShape
        Its `tokens` do not matter.
    device : str
    points : callable, optional
        Goes through what is to be measured, for a progress bar.

    Returns
    -------
    curve : list of MemoryPoint
        Points that fail report why and do not stop the others.
    """
    wanted = [(choice, n) for n in sorted(tokens) for choice in choices]
    curve = []
    for choice, n in points(wanted):
        here = LayerShape(shape.batch, n, shape.dim, shape.heads, shape.dtype)
        try:
            peak = peak_memory(choice, here, ("forward_backward",), device=device)
            curve.append(MemoryPoint(choice.name, n, peak["forward_backward"]))
        except RuntimeError as error:
            curve.append(MemoryPoint(choice.name, n, None, str(error)))
    return curve


def growth(curve: Sequence[MemoryPoint], name: str) -> float | None:
    """Power of N with which a layer's memory grows, between the two largest numbers of tokens.

    None with fewer than two points above 0.
    """
    own = sorted((p.tokens, p.mib) for p in curve if p.name == name and p.mib)
    if len(own) < 2:
        return None
    (n0, m0), (n1, m1) = own[-2:]
    return math.log(m1 / m0) / math.log(n1 / n0)


def _run(choice: LayerChoice, layer: torch.nn.Module, x: torch.Tensor, backward: bool) -> None:
    with choice.running(), torch.set_grad_enabled(backward):
        output = layer(x)
        if backward:
            output.sum().backward()


def _cuda_peaks(
    choice: LayerChoice, shape: LayerShape, passes: Sequence[Pass], device: str
) -> dict[Pass, float]:
    torch.manual_seed(0)
    _warm_up(choice, shape, device)
    layer, x = choice.make(shape, device), shape.draw(device)
    found: dict[Pass, float] = {}
    for what in passes:
        layer.zero_grad(set_to_none=True)
        x.grad = None
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        _run(choice, layer, x, what == "forward_backward")
        torch.cuda.synchronize()
        found[what] = (torch.cuda.max_memory_allocated() - before) / MIB
    return found


def _warm_up(choice: LayerChoice, shape: LayerShape, device: str = "cpu") -> None:
    """Load code and compile kernels with the same layer on a few tokens."""
    k = choice.options.get("n_neighbors", 9)
    n = max(8, math.isqrt(2 * k) + 1) ** 2 + 1
    small = next(c for c in layer_choices(n, k) if c.layer == choice.layer)
    options = {**small.options, **choice.options}
    if "num_prefix_tokens" in options:
        options = small.options
    if "num_samples" in options:
        options["num_samples"] = min(options["num_samples"], n)
    few = LayerShape(1, n, shape.dim, shape.heads, shape.dtype)
    like = LayerChoice(choice.name, choice.layer, options, choice.plain)
    _run(like, like.make(few, device), few.draw(device), backward=True)


def _measure(task: dict[str, Any]) -> dict[Pass, float]:
    torch.set_num_threads(task["threads"])
    torch.manual_seed(0)
    choice, shape = LayerChoice(**task["choice"]), LayerShape(**task["shape"])
    _warm_up(choice, shape)
    layer, x = choice.make(shape), shape.draw()
    found: dict[Pass, float] = {}
    for what in task["passes"]:
        layer.zero_grad(set_to_none=True)
        x.grad = None
        with PeakMemory() as peak:
            _run(choice, layer, x, what == "forward_backward")
        found[what] = peak.mib
    return found


if __name__ == "__main__":
    print(json.dumps(_measure(json.loads(sys.argv[1]))))
