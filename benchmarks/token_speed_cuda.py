"""Time and memory of a k-NN attention layer on a CUDA device, against FlashAttention.

Claims, in bfloat16 with the four projections included (widths of ViT-Tiny and ViT-Base; N = 197,
1024 and 4096; K = 9 and 32), forward and backward: the Triton kernels take at most a fifth of the
time of the plain operations; at N = 4096 and K = 9 less than FlashAttention through
`torch.nn.functional.scaled_dot_product_attention`. Their memory grows with N K: a curve to
N = 65,536.
Before anything is timed the kernels are compared with the plain operations on the device.

Layers take turns; medians of device time over the repeats with the middle half of them. Shapes that
are in the output file already are left out, so that a run that was cut off resumes.

    python benchmarks/token_speed.py --device cuda
    python benchmarks/token_speed.py --device cuda --models tiny --lengths 197 --curve ""
"""

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from nearwise_lab.experiments.measure import MIB, PeakMemory
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nearwise.conditions import command_line, hardware, versions
from nearwise.functional import attention_implementation
from nearwise.functional.tokens import attend
from nearwise.nn import KNNAttention

HERE = Path(__file__).parent
MODELS = {"tiny": (192, 3), "base": (768, 12)}  # width, heads
WARM_UP = 3
FASTER_THAN_PLAIN = 5.0
Layers = dict[str, Callable[[Tensor], Tensor]]


class FlashLayer(nn.Module):
    """Four projections around FlashAttention (on a CPU: around torch's own choice)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend to all tokens."""
        parts = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION) if x.is_cuda else nullcontext():
            attended = F.scaled_dot_product_attention(*parts)
        result: Tensor = self.proj(attended.transpose(1, 2).flatten(2))
        return result


def forced(name: str, layer: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return the layer, run by one implementation; its backward pass keeps to it."""

    def call(x: Tensor) -> Tensor:
        with attention_implementation(name):
            result: Tensor = layer(x)
        return result

    return call


def layers(model: str, neighbors: list[int], device: torch.device, plain: bool = True) -> Layers:
    """Build the layers to compare, by name."""
    width, heads = MODELS[model]
    place: Any = {"device": device, "dtype": torch.bfloat16}
    fused = "triton" if device.type == "cuda" else "auto"
    found: Layers = {"flash": FlashLayer(width, heads).to(**place)}
    for k in neighbors:
        layer = KNNAttention(width, heads, n_neighbors=k).to(**place)
        found[f"fused K={k}"] = forced(fused, layer)
        if plain:
            found[f"plain K={k}"] = forced("plain", layer)
    return found


def compare_results(device: torch.device) -> None:
    """Stop where kernels and plain operations disagree on this device."""
    generator = torch.Generator(device).manual_seed(0)
    for dtype, close in ((torch.float32, 1e-4), (torch.bfloat16, 4e-2)):
        for n_tokens, k in ((197, 9), (300, 32), (1024, 100)):
            tokens = torch.randn(3, 2, 3, n_tokens, 64, generator=generator, device=device)
            results = []
            for name in ("plain", "triton" if device.type == "cuda" else "auto"):
                parts = [x.to(dtype).requires_grad_() for x in tokens]
                with attention_implementation(name):
                    found = attend(parts[0], parts[1], parts[2], k)
                found.output.float().square().sum().backward()
                results.append([found.output, *(x.grad for x in parts), found.indices])
            *values, indices = zip(*results, strict=True)
            same = (indices[0] == indices[1]).float().mean().item()
            print(f"{dtype} N={n_tokens} K={k}: {100 * same:.3f} % of the indices agree")
            # Keys whose scores differ by less than rounding may change places.
            if same < 0.99:
                raise SystemExit("The kernels select other keys than the plain operations.")
            for plain, fused in values:
                error = ((plain - fused).abs().mean() / plain.abs().mean()).item()
                if not error < close:
                    raise SystemExit(
                        f"The kernels are off by {error:.2g}, relative to the mean size."
                    )


@contextmanager
def clock(device: torch.device) -> Iterator[list[float]]:
    """Measure milliseconds of device time (on a CPU: of the wall); the list receives them."""
    took: list[float] = []
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        yield took
        end.record()
        end.synchronize()
        took.append(start.elapsed_time(end))
    else:
        begin = time.perf_counter()
        yield took
        took.append(1000 * (time.perf_counter() - begin))


def one_pass(layer: Callable[[Tensor], Tensor], x: Tensor, backward: bool) -> None:
    """Run a layer once."""
    if backward:
        layer(x).sum().backward()
    else:
        with torch.no_grad():
            layer(x)


def memory(layer: Callable[[Tensor], Tensor], x: Tensor) -> float | None:
    """Peak MiB of a forward and backward pass above what is there; None where it is not enough."""
    if x.device.type != "cuda":
        with PeakMemory() as peak:
            one_pass(layer, x, backward=True)
        return peak.mib
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    try:
        one_pass(layer, x, backward=True)
    except torch.cuda.OutOfMemoryError:
        return None
    return (torch.cuda.max_memory_allocated() - before) / MIB


def measure(found: Layers, x: Tensor, repeats: int) -> dict[str, Any]:
    """Times and memory of layers that take turns."""
    rows: dict[str, Any] = {name: {"peak_mib": memory(layer, x)} for name, layer in found.items()}
    fits = [name for name in found if rows[name]["peak_mib"] is not None]
    for what in ("forward", "forward_backward"):
        times: dict[str, list[float]] = {name: [] for name in fits}
        for turn in range(WARM_UP + repeats):
            for name in fits:
                with clock(x.device) as took:
                    one_pass(found[name], x, what == "forward_backward")
                if turn >= WARM_UP:
                    times[name] += took
        for name in fits:
            low, middle, high = statistics.quantiles(times[name], n=4)
            rows[name][what] = {"median_ms": middle, "low_ms": low, "high_ms": high}
    return rows


def judge(rows: dict[str, Any], n_tokens: int) -> dict[str, Any]:
    """Ratios to the bars, of forward and backward together."""
    verdicts: dict[str, Any] = {}
    for name, row in rows.items():
        if not name.startswith("fused") or "forward_backward" not in row:
            continue
        own = row["forward_backward"]["median_ms"]
        for other in ("flash", name.replace("fused", "plain")):
            if "forward_backward" in rows.get(other, {}):
                ratio = rows[other]["forward_backward"]["median_ms"] / own
                verdicts[f"{name}: times faster than {other}"] = round(ratio, 3)
        faster = verdicts.get(f"{name}: times faster than {name.replace('fused', 'plain')}")
        verdicts[f"{name}: 5 times plain reached"] = faster and faster >= FASTER_THAN_PLAIN
    if n_tokens >= 4096:
        flash = verdicts.get("fused K=9: times faster than flash")
        verdicts["fused K=9: flash reached"] = flash and flash > 1
    return verdicts


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(
        prog="token_speed.py --device cuda",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cuda", help="cpu tries the script out")
    parser.add_argument("--models", default="tiny,base", help="comma-separated")
    parser.add_argument("--lengths", default="197,1024,4096", help="comma-separated")
    parser.add_argument("--neighbors", default="9,32", help="comma-separated")
    parser.add_argument("--tokens", type=int, default=16384, help="tokens in a batch, about")
    parser.add_argument(
        "--curve", default="1024,2048,4096,8192,16384,32768,65536", help="lengths of the curve"
    )
    parser.add_argument("--plain-to", type=int, default=16384, help="longest curve of plain")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "token_speed_cuda.json")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Compare, measure, judge and write."""
    args = parsed(arguments)
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("There is no CUDA device here. Try the script out with --device cpu.")
    torch.manual_seed(args.seed)
    lengths, neighbors, curve = (
        [int(n) for n in text.split(",") if n]
        for text in (args.lengths, args.neighbors, args.curve)
    )
    # No class may fall back to plain operations unnoticed: its times would be theirs.
    warnings.filterwarnings("error", "k-NN attention runs in plain", RuntimeWarning)
    compare_results(device)
    results: dict[str, Any] = {"speed": {}, "curve": {}}
    if args.out.exists():
        results = json.loads(args.out.read_text())["results"]

    def write() -> None:
        conditions = {"command": command_line(), "versions": versions(), "hardware": hardware()}
        conditions |= {"dtype": "bfloat16", "repeats": args.repeats, "seed": args.seed}
        args.out.write_text(json.dumps(conditions | {"results": results}, indent=1) + "\n")

    for model in args.models.split(","):
        for n in lengths:
            name = f"{model} N={n}"
            if name in results["speed"]:
                continue
            batch = max(1, args.tokens // n)
            x = torch.randn(batch, n, MODELS[model][0], device=device, dtype=torch.bfloat16)
            rows = measure(layers(model, neighbors, device), x.requires_grad_(), args.repeats)
            results["speed"][name] = {
                "batch": batch,
                "layers": rows,
                "verdicts": judge(rows, n),
            }
            print(name, json.dumps(results["speed"][name]["verdicts"], indent=1))
            write()
    for n in curve:
        if str(n) in results["curve"]:
            continue
        x = torch.randn(1, n, MODELS["tiny"][0], device=device, dtype=torch.bfloat16)
        found = layers("tiny", [9], device, plain=n <= args.plain_to)
        peaks = {name: memory(layer, x.requires_grad_()) for name, layer in found.items()}
        results["curve"][str(n)] = peaks
        print(f"N={n}: peak MiB {peaks}")
        write()


if __name__ == "__main__":
    main()
