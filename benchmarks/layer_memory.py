"""Peak memory of attention to the nearest tokens, and how it grows with their number.

Claims: at B=2 N=1024 (width 192, 3 heads, K=9) forward and backward take under 60 MiB beyond input
and weights, and memory grows like N K, not N^2: the power of N at the two largest lengths is 1.
Each number comes from a process of its own, by the kernel's high-water mark.

    python benchmarks/layer_memory.py
    python benchmarks/layer_memory.py --device cuda --dtype bfloat16 --out gpu.json
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

from keeping import conditions
from nearwise_lab.experiments.token_layers import LayerShape, layer_choices, peak_memory

HERE = Path(__file__).parent
BAR_MIB, BAR_POWER = 60.0, 1.2


def measure_point(choice: Any, shape: LayerShape, device: str) -> dict[str, Any]:
    """Peak memory of forward and backward; None, with the reason, where it was not measured."""
    point: dict[str, Any] = {"layer": choice.name, "tokens": shape.tokens, "mib": None, "note": ""}
    try:
        peak = peak_memory(choice, shape, ("forward_backward",), device=device)
    except RuntimeError as error:
        return {**point, "note": str(error)}
    return {**point, "mib": peak["forward_backward"]}


def growth(curve: list[dict[str, Any]], name: str) -> float | None:
    """Power of N with which a layer's memory grows, between the two largest numbers of tokens.

    None with fewer than two points above 0.
    """
    own = sorted((p["tokens"], p["mib"]) for p in curve if p["layer"] == name and p["mib"])
    if len(own) < 2:
        return None
    (n0, m0), (n1, m1) = own[-2:]
    return math.log(m1 / m0) / math.log(n1 / n0)


def main() -> None:
    """Measure, judge and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", default="256,1024,4096,16384,65536", help="of the curve")
    parser.add_argument("--neighbors", type=int, default=9)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "layer_memory.json")
    args = parser.parse_args()
    memory = {}
    for choice in layer_choices(1024, args.neighbors):
        shape = LayerShape(2, 1024, dtype=args.dtype)
        memory[choice.name] = peak_memory(choice, shape, device=args.device)
        print(f"{choice.name} at N=1024: {memory[choice.name]}", flush=True)
    lengths = sorted(map(int, args.tokens.split(",")))
    names = ("KNNAttention", "KNNAttention plain")
    chosen = layer_choices(lengths[0], args.neighbors, names)
    points = []
    for n in lengths:
        for choice in chosen:
            shape = LayerShape(1, n, dtype=args.dtype)
            points.append(measure_point(choice, shape, args.device))
            print(points[-1], flush=True)
    powers = {choice.name: growth(points, choice.name) for choice in chosen}
    ours = memory["KNNAttention"]["forward_backward"]
    print(f"KNNAttention at N=1024: {ours:.1f} MiB (bar {BAR_MIB}); grows as N^{powers}")
    results: dict[str, Any] = {
        "at_1024": {"bar_mib": BAR_MIB, "layers": memory},
        "curve": points,
        "power_of_n": powers,
        "bar_power": BAR_POWER,
    }
    settings = {"neighbors": args.neighbors, "dtype": args.dtype, "width": 192, "heads": 3}
    args.out.write_text(json.dumps(conditions() | settings | {"results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
