"""Peak memory of attention to the nearest tokens, and how it grows with their number.

Claims: at B=2 N=1024 (width 192, 3 heads, K=9) forward and backward take under 60 MiB beyond input
and weights, and memory grows like N K, not N^2: the power of N at the two largest lengths is 1.
Each number comes from a process of its own, by the kernel's high-water mark.

    python benchmarks/layer_memory.py
    python benchmarks/layer_memory.py --device cuda --dtype bfloat16 --out gpu.json
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nearwise_lab.experiments.token_layers import (
    LayerShape,
    growth,
    layer_choices,
    memory_curve,
    peak_memory,
    pick_layers,
)

from nearwise.conditions import command_line, hardware, versions

HERE = Path(__file__).parent
BAR_MIB, BAR_POWER = 60.0, 1.2


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
    place: Any = {"device": args.device}
    memory = {
        choice.name: peak_memory(choice, LayerShape(2, 1024, dtype=args.dtype), **place)
        for choice in told(layer_choices(1024, args.neighbors))
    }
    lengths = list(map(int, args.tokens.split(",")))
    known = layer_choices(min(lengths), args.neighbors)
    chosen = pick_layers(known, ("KNNAttention", "KNNAttention plain"))
    alone = LayerShape(1, 1, dtype=args.dtype)
    points = memory_curve(chosen, lengths, shape=alone, points=told, **place)
    powers = {name: growth(points, name) for name in dict.fromkeys(p.name for p in points)}
    ours = memory["KNNAttention"]["forward_backward"]
    print(f"KNNAttention at N=1024: {ours:.1f} MiB (bar {BAR_MIB}); grows as N^{powers}")
    results: dict[str, Any] = {
        "at_1024": {"bar_mib": BAR_MIB, "layers": memory},
        "curve": [
            {"layer": p.name, "tokens": p.tokens, "mib": p.mib, "note": p.note} for p in points
        ],
        "power_of_n": powers,
        "bar_power": BAR_POWER,
    }
    conditions = {"command": command_line(), "versions": versions(), "hardware": hardware()}
    settings = {"neighbors": args.neighbors, "dtype": args.dtype, "width": alone.dim, "heads": 3}
    args.out.write_text(json.dumps(conditions | settings | {"results": results}, indent=1) + "\n")


def told(steps: Sequence[Any]) -> Iterator[Any]:
    """Say how far it is."""
    for i, step in enumerate(steps, 1):
        print(f"{i} of {len(steps)}", flush=True)
        yield step


if __name__ == "__main__":
    main()
