"""Time of a k-NN attention layer against one of scaled dot-product attention, on one CPU thread.

Claims, as ratios of processor time to a layer of `torch.nn.functional.scaled_dot_product_attention`
with the same four projections: at B=8 N=197 (width 192, 3 heads, K=9) at most 1.15 forward and 0.95
forward and backward; at B=2 N=1024 at most 0.95 and 0.70. Layers take turns, so that whatever else
the machine does falls on all of them, in an order that is drawn anew each time, so that no layer
always follows the same one; medians over the repeats, with the middle half of them.

    python benchmarks/token_speed.py
    python benchmarks/token_speed.py --layers KNNAttention,ConvNNAttention --neighbors 9,32
    python benchmarks/token_speed.py --device cuda --help  # another claim: token_speed_cuda.py
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import token_speed_cuda
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearwise.experiments.measure import command_line, hardware, versions
from nearwise.nn import ConvNNAttention, KNNAttention, KvtAttention

HERE = Path(__file__).parent
SHAPES = {"B=8 N=197": (8, 197), "B=2 N=1024": (2, 1024)}
WIDTH, HEADS, WARM_UP = 192, 3, 2
BARS = {"B=8 N=197": (1.15, 0.95), "B=2 N=1024": (0.95, 0.70)}
LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "KNNAttention": lambda k: KNNAttention(WIDTH, HEADS, n_neighbors=k),
    "ConvNNAttention": lambda k: ConvNNAttention(WIDTH, HEADS, n_neighbors=k),
    "KvtAttention": lambda k: KvtAttention(WIDTH, HEADS, n_neighbors=k),
}


class DenseAttention(nn.Module):
    """Four projections around torch's own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Attend to all tokens."""
        heads = self.qkv(x).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended: Tensor = self.proj(
            F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        )
        return attended


def seconds(layer: nn.Module, x: Tensor, *, backward: bool) -> float:
    """Processor time of one pass."""
    start = time.process_time()
    if backward:
        layer(x).sum().backward()
    else:
        with torch.no_grad():
            layer(x)
    return time.process_time() - start


def compare(shape: tuple[int, int], layers: dict[str, nn.Module], repeats: int) -> dict[str, Any]:
    """Times of all layers in turn, forward and forward with backward."""
    x = torch.randn(*shape, WIDTH, requires_grad=True)
    times: dict[str, dict[str, list[float]]] = {name: {"f": [], "fb": []} for name in layers}
    order = list(layers.items())
    for turn in range(WARM_UP + repeats):
        random.Random(turn).shuffle(order)
        for name, layer in order:
            for what in ("f", "fb"):
                took = seconds(layer, x, backward=what == "fb")
                if turn >= WARM_UP:
                    times[name][what].append(took)
    return {name: {what: spread(t) for what, t in own.items()} for name, own in times.items()}


def spread(times: list[float]) -> dict[str, float]:
    """Median and quartiles in milliseconds."""
    low, middle, high = (1000 * q for q in statistics.quantiles(times, n=4))
    return {"median_ms": middle, "low_ms": low, "high_ms": high}


def main() -> None:
    """Measure, judge and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", default=",".join(LAYERS), help="comma-separated")
    parser.add_argument("--neighbors", default="9,32", help="comma-separated")
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "token_speed.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    results: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        layers: dict[str, nn.Module] = {"dense": DenseAttention()}
        for k in map(int, args.neighbors.split(",")):
            layers |= {f"{kind} K={k}": LAYERS[kind](k) for kind in args.layers.split(",")}
        found = compare(shape, layers, args.repeats)
        for layer, own in found.items():
            ratios = [
                own[what]["median_ms"] / found["dense"][what]["median_ms"] for what in ("f", "fb")
            ]
            own["ratio"] = dict(zip(("forward", "forward_backward"), ratios, strict=True))
            print(f"{name}  {layer:22} {ratios[0]:.2f} / {ratios[1]:.2f}")
        reached = found.get("KNNAttention K=9", {}).get("ratio")
        results[name] = {"layers": found, "bar_of_KNNAttention_K=9": BARS[name], "reached": reached}
    conditions = {"command": command_line(), "versions": versions(), "hardware": hardware()}
    text = json.dumps(conditions | {"repeats": args.repeats, "results": results}, indent=1)
    args.out.write_text(text + "\n")


if __name__ == "__main__":
    if "cuda" in sys.argv or "--device=cuda" in sys.argv:
        token_speed_cuda.main()
    else:
        main()
