"""Time of a k-NN attention layer against one of scaled dot-product attention, on one CPU thread.

Claims, as ratios of processor time to a layer of `torch.nn.functional.scaled_dot_product_attention`
with the same four projections: at B=8 N=197 (width 192, 3 heads, K=9) at most 1.15 forward and 0.95
forward and backward; at B=2 N=1024 at most 0.95 and 0.70. Layers take turns, so that whatever else
the machine does falls on all of them, in an order that is drawn anew each time, so that no layer
always follows the same one; medians over the repeats, with the middle half of them.

    python benchmarks/token_speed.py
    python benchmarks/token_speed.py --layers KNNAttention,ConvNNAttention --neighbors 9,32
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from keeping import conditions
from nearwise_lab.experiments.token_layers import BASELINE, LayerChoice, LayerShape, time_layers

HERE = Path(__file__).parent
SHAPES = {"B=8 N=197": LayerShape(8, 197), "B=2 N=1024": LayerShape(2, 1024)}
BARS = {"B=8 N=197": (1.15, 0.95), "B=2 N=1024": (0.95, 0.70)}
LAYERS = ("KNNAttention", "ConvNNAttention", "KvtAttention")
PASSES = {"f": "forward", "fb": "forward_backward"}


def compare(shape: LayerShape, choices: list[LayerChoice], repeats: int) -> dict[str, Any]:
    """Times of all layers in turn, forward and forward with backward, and their ratios."""
    times: Any = time_layers(choices, shape, repeats=repeats)
    found: dict[str, Any] = {}
    for name, own in times.items():
        found[name] = {short: own[what]._asdict() for short, what in PASSES.items()}
        found[name]["ratio"] = {
            what: own[what].median_ms / times["dense"][what].median_ms for what in own
        }
    return found


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
    choices = [LayerChoice("dense", BASELINE)]
    for k in map(int, args.neighbors.split(",")):
        choices += [
            LayerChoice(f"{layer} K={k}", layer, {"n_neighbors": k})
            for layer in args.layers.split(",")
        ]
    results: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        found = compare(shape, choices, args.repeats)
        for layer, own in found.items():
            forward, both = own["ratio"].values()
            print(f"{name}  {layer:22} {forward:.2f} / {both:.2f}")
        reached = found.get("KNNAttention K=9", {}).get("ratio")
        results[name] = {"layers": found, "bar_of_KNNAttention_K=9": BARS[name], "reached": reached}
    text = json.dumps(conditions() | {"repeats": args.repeats, "results": results}, indent=1)
    args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
