"""Peak memory of attention to the nearest tokens, and how it grows with their number.

Claims: at B=2 N=1024 (width 192, 3 heads, K=9) forward and backward take under 60 MiB beyond input
and weights, and memory grows like N K, not N^2: the power of N at the two largest lengths is 1.
Each number comes from a process of its own, by the kernel's high-water mark. Results are kept as
they come in FOLDER; a run that was stopped goes on there.

    python benchmarks/layer_memory.py
    python benchmarks/layer_memory.py --device cuda --dtype bfloat16 --out gpu.json
"""

import argparse
import json
from pathlib import Path
from typing import Any

from nearwise_lab.experiments.token_layers import MemoryPoint, growth
from nearwise_lab.experiments.token_layers.bench import BenchPlan, BenchRows, run_memory

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
    parser.add_argument("--folder", type=Path, help="keeps what is measured; none by default")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "layer_memory.json")
    args = parser.parse_args()
    plan = BenchPlan(
        tokens=(1024,),
        batch=None,
        neighbors=args.neighbors,
        device=args.device,
        dtype=args.dtype,
        curve=tuple(map(int, args.tokens.split(","))),
    )
    rows = run_memory(plan, BenchRows(args.folder), watch=_told)
    memory = {row["layer"]: row for row in rows if row["kind"] == "memory"}
    points = [MemoryPoint(r["layer"], r["tokens"], r["mib"]) for r in rows if r["kind"] == "curve"]
    powers = {name: growth(points, name) for name in dict.fromkeys(p.name for p in points)}
    ours = memory["KNNAttention"]["forward_backward"]
    print(f"KNNAttention at N=1024: {ours:.1f} MiB (bar {BAR_MIB}); grows as N^{powers}")
    results: dict[str, Any] = {
        "at_1024": {"bar_mib": BAR_MIB, "layers": {n: _values(r) for n, r in memory.items()}},
        "curve": [
            {k: r[k] for k in ("layer", "tokens", "mib", "note")} for r in rows if "mib" in r
        ],
        "power_of_n": powers,
        "bar_power": BAR_POWER,
    }
    conditions = {"command": command_line(), "versions": versions(), "hardware": hardware()}
    settings = {"neighbors": args.neighbors, "dtype": args.dtype, "width": plan.dim, "heads": 3}
    args.out.write_text(json.dumps(conditions | settings | {"results": results}, indent=1) + "\n")


def _values(row: dict[str, Any]) -> dict[str, float]:
    return {what: row[what] for what in ("forward", "forward_backward")}


def _told(steps: Any, title: str) -> Any:
    for i, step in enumerate(steps, 1):
        print(f"{title}: {i} of {len(steps)}", flush=True)
        yield step


if __name__ == "__main__":
    main()
