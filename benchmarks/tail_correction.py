"""Error of sampled attention against exact attention to all keys, at equal numbers of keys read.

Measured: what k-NN attention leaves out is a bias, a sampled tail turns it into noise. Which is
smaller depends on how far attention is spread and on whether far keys carry other values than near
ones. Lazy Gumbel draws have no bias at all, nor do their gradients, at the price of more noise.

Tokens: "digits" are scikit-learn's digits (64 numbers each, of unit length): 397 queries attend to
1,400 keys whose values are one-hot labels. "normal" are draws: 128 queries, 1,400 keys, width 64.
The scores are sharpened in three steps; perplexity, exp of the entropy of the weights, says over
how many keys attention spreads. Every estimator reads the same number of keys: the nearest alone;
half nearest and half sampled; an even sample alone; half nearest and as many lazy Gumbel draws as
the other half pays for. Errors are root mean squares over queries, channels and repeats in units of
the standard deviation of the values; the bias is what is left of the mean error when the noise of
averaging is taken out (0 where noise is all). Gradients are of the same random slope of the output.

    python benchmarks/tail_correction.py
    python benchmarks/tail_correction.py --seeds 0 --repeats 8 --out try.json
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from nearwise_lab.nn import lazy_gumbel_attention
from nearwise_lab.nn.tail import tail_corrected_attention
from nearwise_lab.results.measures import mean_with_interval
from sklearn.datasets import load_digits
from torch import Tensor

from nearwise.conditions import command_line, hardware, versions
from nearwise.functional import knn_attention
from nearwise.functional.tokens import attend

HERE = Path(__file__).parent
SCALES = {"digits": (8.0, 24.0, 64.0), "normal": (0.06, 0.125, 0.3)}
BUDGETS = (32, 64, 128, 256, 512)
GRADIENT_BUDGET = 128
NAMES = ("nearest", "tail-corrected", "even sample", "lazy Gumbel")
Parts = tuple[Tensor, Tensor, Tensor]


def tokens(kind: str, seed: int) -> Parts:
    """Queries, keys and values, each (1, 1, n, width)."""
    rng = np.random.default_rng(seed)
    if kind == "normal":
        shapes = ((128, 64), (1400, 64), (1400, 16))
        q, k, v = (torch.from_numpy(rng.normal(size=s)).float() for s in shapes)
    else:
        X, y = load_digits(return_X_y=True)
        order = rng.permutation(len(y))
        rows = F.normalize(torch.from_numpy(X[order]).float(), dim=1)
        q, k = rows[1400:], rows[:1400]
        v = F.one_hot(torch.from_numpy(y[order][:1400]), 10).float()
    return q[None, None], k[None, None], v[None, None]


def exact(parts: Parts, scale: float) -> tuple[Tensor, float]:
    """Attention to all keys, and its perplexity."""
    q, k, v = parts
    log_weights = torch.log_softmax(q @ k.mT * scale, dim=-1)
    entropy = -(log_weights.exp() * log_weights).sum(-1)
    return log_weights.exp() @ v, float(entropy.detach().mean().exp())


def estimators(
    parts: Parts, scale: float, budget: int, ranked: Tensor, generator: torch.Generator
) -> dict[str, tuple[bool, Callable[[Parts], tuple[Tensor, float]]]]:
    """For each name: whether it is random, and what gives (output, keys read) for some tokens."""
    half = budget // 2
    near = ranked[..., :half]
    nobody = torch.full_like(ranked[..., :1], -1)
    # How many draws the other half pays for, by the keys that 200 of them look at.
    q, k, v = (x.detach() for x in parts)
    tried = lazy_gumbel_attention(
        q, k, v, half, 200, scale=scale, neighbors=near, generator=generator
    )
    draws = max(2, round(half * 200 / max(float(tried.n_probes.float().mean()), 1e-9)))
    draws = min(draws, 4 * budget)

    def nearest(tokens: Parts) -> tuple[Tensor, float]:
        return knn_attention(*tokens, budget, scale=scale), budget

    def corrected(tokens: Parts) -> tuple[Tensor, float]:
        found = tail_corrected_attention(
            *tokens, half, half, scale=scale, neighbors=near, generator=generator
        )
        return found.output, budget

    def even(tokens: Parts) -> tuple[Tensor, float]:
        found = tail_corrected_attention(
            *tokens, 1, budget, scale=scale, neighbors=nobody, generator=generator
        )
        return found.output, budget

    def lazy(tokens: Parts) -> tuple[Tensor, float]:
        found = lazy_gumbel_attention(
            *tokens, half, draws, scale=scale, neighbors=near, generator=generator
        )
        return found.output, half + float(found.n_probes.float().mean())

    return dict(
        zip(NAMES, ((False, nearest), (True, corrected), (True, even), (True, lazy)), strict=True)
    )


def split_error(estimates: Tensor, truth: Tensor, unit: float) -> dict[str, float]:
    """Root mean square error, bias and standard deviation of estimates (R, ...), in `unit`."""
    n = len(estimates)
    error = float((estimates - truth).square().mean())
    noise = float(estimates.var(0).mean()) if n > 1 else 0.0
    bias = max(float((estimates.mean(0) - truth).square().mean()) - noise / n, 0.0)
    return {
        "rms": math.sqrt(error) / unit,
        "bias": math.sqrt(bias) / unit,
        "sd": math.sqrt(noise) / unit,
    }


def gradient_errors(
    run: Callable[[Parts], tuple[Tensor, float]], parts: Parts, scale: float, repeats: int
) -> dict[str, dict[str, float]]:
    """Errors of the gradients to query, key and value, in units of their own root mean square."""
    leaves: Any = [x.clone().requires_grad_() for x in parts]
    own = torch.Generator().manual_seed(0)
    truth = exact(leaves, scale)[0]
    slope = torch.randn(truth.shape, generator=own)
    true = torch.autograd.grad((truth * slope).sum(), leaves)
    runs = [torch.autograd.grad((run(leaves)[0] * slope).sum(), leaves) for _ in range(repeats)]
    found = zip(("query", "key", "value"), zip(*runs, strict=True), true, strict=True)
    return {
        name: split_error(torch.stack(many), one, float(one.square().mean().sqrt()))
        for name, many, one in found
    }


def measure(kind: str, seed: int, repeats: int) -> list[dict[str, Any]]:
    """All records of one kind of tokens and one seed."""
    parts = tokens(kind, seed)
    unit = float(parts[2].std(dim=-2, correction=0).square().mean().sqrt())
    records = []
    for scale in SCALES[kind]:
        truth, perplexity = exact(parts, scale)
        ranked = attend(*parts, max(BUDGETS), scale=scale).indices
        for budget in BUDGETS:
            generator = torch.Generator().manual_seed(1000 * seed + budget)
            chosen = estimators(parts, scale, budget, ranked, generator)
            for name, (is_random, run) in chosen.items():
                times = repeats if is_random else 1
                with torch.no_grad():
                    runs = [run(parts) for _ in range(times)]
                record: dict[str, Any] = {
                    "tokens": kind,
                    "scale": scale,
                    "seed": seed,
                    "perplexity": perplexity,
                    "budget": budget,
                    "estimator": name,
                    "read": sum(read for _, read in runs) / times,
                }
                record |= split_error(torch.stack([out for out, _ in runs]), truth, unit)
                if budget == GRADIENT_BUDGET:
                    record["gradients"] = gradient_errors(run, parts, scale, times)
                records.append(record)
            print(kind, f"scale {scale} seed {seed} budget {budget}", flush=True)
    return records


def table(records: list[dict[str, Any]]) -> str:
    """Mean errors over the seeds, a row for each step of sharpness and number of keys read."""
    lines = [
        f"| tokens | perplexity | keys read | {' | '.join(NAMES)} |",
        "|---|---|---|" + "---|" * len(NAMES),
    ]
    for kind, scales in SCALES.items():
        for scale in scales:
            here = [r for r in records if r["tokens"] == kind and r["scale"] == scale]
            if not here:
                continue
            perplexity = sum(r["perplexity"] for r in here) / len(here)
            for budget in BUDGETS:
                cells = []
                for name in NAMES:
                    own = [r for r in here if (r["budget"], r["estimator"]) == (budget, name)]
                    rms = mean_with_interval([r["rms"] for r in own])
                    half = "" if rms.half is None else f" ± {rms.half:.4f}"
                    bias = sum(r["bias"] for r in own) / len(own)
                    cells.append(f"{rms.mean:.4f}{half}, bias {bias:.4f}")
                lines.append(f"| {kind} | {perplexity:.0f} | {budget} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, write after every seed, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", default="digits,normal", help="comma-separated")
    parser.add_argument("--seeds", default="0,1,2", help="comma-separated")
    parser.add_argument("--repeats", type=int, default=8, help="estimates of each setting")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "tail_correction.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    records: list[dict[str, Any]] = []
    if args.out.exists():
        before = json.loads(args.out.read_text())
        records = before["records"] if before["repeats"] == args.repeats else []
    for kind in args.tokens.split(","):
        for seed in map(int, args.seeds.split(",")):
            if any((r["tokens"], r["seed"]) == (kind, seed) for r in records):
                continue
            records += measure(kind, seed, args.repeats)
            conditions = {
                "command": command_line(),
                "versions": versions(),
                "hardware": hardware(),
                "repeats": args.repeats,
            }
            args.out.write_text(json.dumps(conditions | {"records": records}, indent=1) + "\n")
    print(table(records))


if __name__ == "__main__":
    main()
