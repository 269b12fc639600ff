"""Time of layers that take turns, so that whatever else the machine does falls on all of them."""

import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from nearwise_lab.experiments.token_layers.choices import LayerChoice, LayerShape

WARM_UP = 2

Rounds = Callable[[Sequence[int]], Iterable[int]]


@dataclass(frozen=True)
class LayerTime:
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
    rounds: Rounds = iter,
) -> dict[str, dict[str, LayerTime]]:
    """Time the forward pass of layers, and forward and backward.

    Processor time where torch uses one thread, which other programs on the machine hardly change;
    else the time that passes. On a GPU the time between two events. Layers are in training mode,
    without dropout. Their order is drawn again each round, so that none always follows the same
    one.

    Parameters
    ----------
    choices : sequence of LayerChoice
    shape : LayerShape
    repeats : int, default=15
        Rounds, at least 2, after two to warm up.
    device : str, default="cpu"
    seed : int, default=0
        Of weights, input and order.
    rounds : callable, optional
        Goes through the numbers of the rounds, for a progress bar.

    Returns
    -------
    times : dict of str to dict
        "forward" and "forward_backward" of each layer.

    Raises
    ------
    ValueError
        If there are fewer than 2 repeats.
    """
    if repeats < 2:
        raise ValueError(f"repeats={repeats} must be at least 2: a spread needs two numbers.")
    torch.manual_seed(seed)
    layers = [(choice, choice.make(shape, device)) for choice in choices]
    x = shape.draw(device)
    clock = _cuda_ms if x.is_cuda else _cpu_ms
    taken: dict[str, dict[str, list[float]]] = {
        choice.name: {"forward": [], "forward_backward": []} for choice in choices
    }
    order = random.Random(seed)
    for turn in rounds(range(WARM_UP + repeats)):
        order.shuffle(layers)
        for choice, layer in layers:
            with choice.running():
                forward = clock(partial(_forward, layer, x))
                both = clock(partial(_forward_backward, layer, x))
            if turn >= WARM_UP:
                taken[choice.name]["forward"].append(forward)
                taken[choice.name]["forward_backward"].append(both)
    return {name: {what: _spread(ms) for what, ms in own.items()} for name, own in taken.items()}


def _forward(layer: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        layer(x)


def _forward_backward(layer: nn.Module, x: Tensor) -> None:
    layer.zero_grad()
    x.grad = None
    layer(x).sum().backward()


def _cpu_ms(run: Callable[[], None]) -> float:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    run()
    return 1000 * (clock() - start)


def _cuda_ms(run: Callable[[], None]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def _spread(ms: list[float]) -> LayerTime:
    low, middle, high = statistics.quantiles(ms, n=4)
    return LayerTime(middle, low, high)
