"""Interleaved timing of layers, and peak memory of each in a separate process."""

import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from nearwise_lab.experiments.measure import MIB, PeakMemory
from nearwise_lab.experiments.token_layers.choices import LayerChoice, LayerShape, layer_choices

WARM_UP = 2
Pass = Literal["forward", "forward_backward"]
PASSES: tuple[Pass, ...] = get_args(Pass)


class LayerTime(NamedTuple):
    """Milliseconds of one pass: the median of the rounds and their middle half."""

    median_ms: float
    low_ms: float
    high_ms: float


def time_layers(
    choices: Sequence[LayerChoice],
    shape: LayerShape,
    *,
    repeats: int = 15,
    device: str = "cpu",
    seed: int = 0,
    rounds: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> dict[str, dict[Pass, LayerTime]]:
    """Time the forward pass of layers, and forward and backward.

    Processor time where torch uses one thread, which other programs on the machine hardly change;
    else the time that passes. On a GPU the time between two events. Layers are in training mode,
    without dropout. Their order is drawn again each round, so that none always follows the same
    one, and whatever else the machine does falls on all of them.

    There are `repeats` rounds, at least 2 (else ValueError), after two to warm up; `rounds` goes
    through their numbers, for a progress bar. The seed is that of weights, input and order.
    """
    if repeats < 2:
        raise ValueError(f"repeats={repeats} must be at least 2: a spread needs two numbers.")
    torch.manual_seed(seed)
    layers = [(choice, choice.make(shape, device)) for choice in choices]
    x = shape.draw(device)
    clock = _cuda_ms if x.is_cuda else _cpu_ms
    taken: dict[str, dict[Pass, list[float]]] = {
        choice.name: {what: [] for what in PASSES} for choice in choices
    }
    order = random.Random(seed)
    for turn in rounds(range(WARM_UP + repeats)):
        order.shuffle(layers)
        for choice, layer in layers:
            for what in PASSES:
                _clear(layer, x)
                with choice.running():
                    ms = clock(layer, x, what)
                if turn >= WARM_UP:
                    taken[choice.name][what].append(ms)
    return {name: {what: _spread(ms) for what, ms in own.items()} for name, own in taken.items()}


def peak_memory(
    choice: LayerChoice,
    shape: LayerShape,
    passes: Sequence[Pass] = PASSES,
    *,
    device: str = "cpu",
    threads: int = 1,
) -> dict[Pass, float]:
    """Measure the peak memory of a layer's passes, in MiB above the input and the weights.

    On a CPU in a fresh process, by the kernel's high-water mark of resident memory from just
    before a pass; code is loaded and compiled by a small pass before. On a GPU by torch's
    allocator, in this process.

    Passes are measured in the order given; without a backward pass no gradient is prepared.
    `threads` are torch's, on a CPU. Raises RuntimeError if the process fails.
    """
    if torch.device(device).type == "cuda":
        return _peaks(choice, shape, passes, device)
    task = [asdict(choice), asdict(shape), list(passes), threads]
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), str(threads))
    done = subprocess.run(
        [sys.executable, "-m", __name__, json.dumps(task)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise RuntimeError(f"The memory of {choice.name} was not measured: {last[0]}")
    found: dict[Pass, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _run(layer: nn.Module, x: Tensor, what: Pass) -> None:
    backward = what == "forward_backward"
    with torch.set_grad_enabled(backward):
        output = layer(x)
        if backward:
            output.sum().backward()


def _clear(layer: nn.Module, x: Tensor) -> None:
    layer.zero_grad(set_to_none=True)
    x.grad = None


def _cpu_ms(layer: nn.Module, x: Tensor, what: Pass) -> float:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    _run(layer, x, what)
    return 1000 * (clock() - start)


def _cuda_ms(layer: nn.Module, x: Tensor, what: Pass) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    _run(layer, x, what)
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def _spread(ms: list[float]) -> LayerTime:
    low, middle, high = statistics.quantiles(ms, n=4)
    return LayerTime(middle, low, high)


def _peaks(
    choice: LayerChoice, shape: LayerShape, passes: Sequence[Pass], device: str
) -> dict[Pass, float]:
    torch.manual_seed(0)
    with choice.running():
        _warm_up(choice, shape, device)
        layer, x = choice.make(shape, device), shape.draw(device)
        found: dict[Pass, float] = {}
        for what in passes:
            _clear(layer, x)
            if x.is_cuda:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                _run(layer, x, what)
                torch.cuda.synchronize()
                found[what] = (torch.cuda.max_memory_allocated() - before) / MIB
            else:
                with PeakMemory() as peak:
                    _run(layer, x, what)
                found[what] = peak.mib
    return found


def _warm_up(choice: LayerChoice, shape: LayerShape, device: str) -> None:
    """Load code and compile kernels with the same layer on a few tokens."""
    k = choice.options.get("n_neighbors", 9)
    n = max(8, math.isqrt(2 * k) + 1) ** 2 + 1
    small = next(c for c in layer_choices(n, k) if c.layer == choice.layer)
    options: dict[str, Any] = {**small.options, **choice.options}
    if "num_prefix_tokens" in options:
        options = small.options
    if "num_samples" in options:
        options["num_samples"] = min(options["num_samples"], n)
    few = LayerShape(1, n, shape.dim, shape.heads, shape.dtype)
    layer = replace(choice, options=options).make(few, device)
    _run(layer, few.draw(device), "forward_backward")


if __name__ == "__main__":
    own_choice, own_shape, own_passes, n_threads = json.loads(sys.argv[1])
    torch.set_num_threads(n_threads)
    peaks = _peaks(LayerChoice(**own_choice), LayerShape(**own_shape), own_passes, "cpu")
    print(json.dumps(peaks))
