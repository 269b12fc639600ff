"""A small sequence model that names digits from names given earlier, with and without a memory.

In every stream the ten digits get new names, a random permutation. The stream shows images of
digits one after the other; the model predicts the name of each before it is given. It reads
segments of 8 images at a time, so names from before the segment are gone, unless remembered:

    embed image or image with its name -> one MemoryAttention layer -> ten names

An image is a query token and, once named, a second token that later ones may find. Only named
tokens are remembered. Train and test streams share no images.

    .venv/bin/python examples/token_memory.py [OUT.png] [--draw-only]

writes benchmarks/results/token_memory.json (some minutes), then draws
docs/images/memory-attention.png from it and from
benchmarks/results/tail_correction.json; `--draw-only` uses earlier measurements.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from nearwise_lab.results.measures import mean_with_interval
from sklearn.datasets import load_digits
from torch import Tensor, nn

from nearwise.conditions import command_line, hardware, versions
from nearwise.memory import TokenMemory
from nearwise.nn import MemoryAttention

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "images" / "memory-attention.png"
RESULTS = ROOT / "benchmarks" / "results"
DIM, HEADS, NAMES = 64, 2, 10
SEGMENT, BATCH, STEPS = 8, 16, 100
TRAIN_SEGMENTS, TEST_SEGMENTS, TEST_STREAMS = 4, 12, 64
SHARPNESS = 10.0  # of the first attention, by cosines
N_TRAIN = 1200
SEEDS = (0, 1, 2)
DARK, COLORS = "#222222", ("#0f86c9", "#009e73", "#d9822b", "#b8bec4")
# Tokens that a stream remembers; None remembers nothing, not even the segment before.
MEMORIES = {
    "memory of all": {"capacity": None},
    "newest 24": {"capacity": 24},
    "24 at random": {"capacity": 24, "eviction": "reservoir"},
    "no memory": None,
}

PIXELS = "nearest pixels, of all"  # no model: for comparison


class Namer(nn.Module):
    """Says names of images, from the names that earlier images had."""

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Linear(64, DIM)
        self.name = nn.Embedding(NAMES + 1, DIM)  # the last: not given yet
        self.norm = nn.LayerNorm(DIM)
        self.attention = MemoryAttention(
            DIM,
            HEADS,
            metric="cosine",
            n_neighbors=8,
            n_recalled=8,
            learned_temperature=True,
            null_neighbor=True,
        )
        self.say = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, NAMES))
        with torch.no_grad():  # at first, images are compared as they are
            query, key, _ = self.attention.qkv.weight.chunk(3)
            key.copy_(query)
            self.attention.log_scale.fill_(math.log(SHARPNESS))
            self.name.weight.mul_(0.3)

    def forward(self, images: Tensor, names: Tensor, memory: TokenMemory | None) -> Tensor:
        """Logits (B, n, 10) of names, each told only after it was asked: images (B, n, 64)."""
        seen = self.see(images)
        asking = seen + self.name(torch.full_like(names, NAMES))
        told = seen + self.name(names)
        tokens = self.norm(torch.stack([asking, told], dim=2).flatten(1, 2))  # ask, told, ask, ...
        remembered = (torch.arange(tokens.shape[1]) % 2 == 1).expand(tokens.shape[:2])
        # Nobody looks at a question, or at what comes later.
        here = torch.ones(tokens.shape[1], tokens.shape[1]).tril().bool() & remembered[:1]
        here = here | torch.eye(tokens.shape[1]).bool()
        found = self.attention(tokens, here, memory=memory, remember=remembered)
        logits: Tensor = self.say(found[:, ::2])
        return logits


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images and digits, for training streams and for test streams."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    images, labels = torch.from_numpy(X[order]).float(), torch.from_numpy(y[order])
    images = (images - images[:N_TRAIN].mean(0)) / images[:N_TRAIN].std()
    return (images[:N_TRAIN], labels[:N_TRAIN]), (images[N_TRAIN:], labels[N_TRAIN:])


def streams(
    images: Tensor, labels: Tensor, n_streams: int, length: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Images (n_streams, length, 64) and names (n_streams, length): new names in every stream."""
    chosen = torch.randint(len(images), (n_streams, length), generator=generator)
    new = torch.rand(n_streams, NAMES, generator=generator).argsort(1)
    return images[chosen], new.gather(1, labels[chosen])


def train(
    seed: int, data: tuple[Tensor, Tensor], *, with_memory: bool, steps: int = STEPS
) -> Namer:
    """Train on streams of a few segments; what is remembered passes no gradient on."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Namer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    memory = TokenMemory(HEADS, n_streams=BATCH, metric="cosine") if with_memory else None
    for _ in range(steps):
        images, names = streams(*data, BATCH, SEGMENT * TRAIN_SEGMENTS, generator)
        if memory is not None:
            memory.clear()
        losses = [
            F.cross_entropy(model(part, own, memory).flatten(0, 1), own.flatten())
            for part, own in zip(images.split(SEGMENT, 1), names.split(SEGMENT, 1), strict=True)
        ]
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def accuracy(model: Namer, data: tuple[Tensor, Tensor], options: Any, seed: int) -> np.ndarray:
    """Share of right names in each segment of test streams, (n_segments,)."""
    own = torch.Generator().manual_seed(10_000 + seed)
    images, names = streams(*data, TEST_STREAMS, SEGMENT * TEST_SEGMENTS, own)
    memory = None
    if options is not None:
        memory = TokenMemory(HEADS, n_streams=TEST_STREAMS, metric="cosine", seed=seed, **options)
    right = [
        (model(part, told, memory).argmax(-1) == told).float().mean().item()
        for part, told in zip(images.split(SEGMENT, 1), names.split(SEGMENT, 1), strict=True)
    ]
    return np.array(right)


def nearest_pixels(data: tuple[Tensor, Tensor], seed: int) -> np.ndarray:
    """Share of right names by the most similar earlier image alone, on the same test streams."""
    own = torch.Generator().manual_seed(10_000 + seed)
    images, names = streams(*data, TEST_STREAMS, SEGMENT * TEST_SEGMENTS, own)
    unit = F.normalize(images, dim=-1)
    earlier = torch.ones(images.shape[1], images.shape[1]).tril(-1).bool()
    nearest = (unit @ unit.mT).masked_fill(~earlier, -math.inf).argmax(-1)
    right = names.gather(1, nearest) == names
    right[:, 0] = False  # no name was given yet
    return right.float().unflatten(1, (TEST_SEGMENTS, SEGMENT)).mean((0, 2)).numpy()


def measure() -> list[dict[str, Any]]:
    """Accuracies by segment of every memory and seed; the model without one is trained without."""
    told, held = digits()
    records = []
    for seed in SEEDS:
        models = {
            with_memory: train(seed, told, with_memory=with_memory) for with_memory in (True, False)
        }
        for name, options in MEMORIES.items():
            found = accuracy(models[options is not None], held, options, seed)
            records.append({"memory": name, "seed": seed, "accuracy": found.tolist()})
            print(f"seed {seed}, {name}: {np.round(found, 3)}", flush=True)
        pixels = nearest_pixels(held, seed).tolist()
        records.append({"memory": PIXELS, "seed": seed, "accuracy": pixels})
    return records


def draw_streams(axis: Axes, records: list[dict[str, Any]]) -> None:
    """Draw accuracy by the number of images seen."""
    places = SEGMENT * (np.arange(TEST_SEGMENTS) + 0.5)
    for name, color in zip(MEMORIES, COLORS, strict=True):
        own = np.array([r["accuracy"] for r in records if r["memory"] == name])
        axis.plot(places, own.mean(0), "o-", color=color, markersize=3, label=name)
        axis.fill_between(places, own.min(0), own.max(0), color=color, alpha=0.2, linewidth=0)
    own = np.array([r["accuracy"] for r in records if r["memory"] == PIXELS])
    axis.plot(places, own.mean(0), ":", color=DARK, label=PIXELS)
    axis.set_xlabel(f"images seen in the stream (segments of {SEGMENT})")
    axis.set_ylabel("names said right")
    axis.set_ylim(0, 1)
    axis.legend(frameon=False)
    axis.set_title("a sequence model with a memory", fontsize=9)


def draw_errors(axis: Axes, records: list[dict[str, Any]], scale: float) -> None:
    """Draw the error of each estimator by the keys it reads."""
    own = [r for r in records if r["tokens"] == "digits" and r["scale"] == scale]
    looks = zip(
        ("nearest", "tail-corrected", "even sample", "lazy Gumbel"),
        ("#d9822b", "#0f86c9", "#b8bec4", "#009e73"),
        strict=True,
    )
    budgets = sorted({r["budget"] for r in own})
    for name, color in looks:
        parts = [[r for r in own if (r["estimator"], r["budget"]) == (name, b)] for b in budgets]
        points = [[np.mean([r[what] for r in part]) for what in ("read", "rms")] for part in parts]
        # Two draws, the fewest there are, may read more than was to be read.
        paid = [p for p, b in zip(points, budgets, strict=True) if p[0] < 1.1 * b]
        axis.loglog(*zip(*paid, strict=True), "o-", color=color, markersize=3, label=name)
    perplexity = np.mean([r["perplexity"] for r in own])
    axis.set_title(f"1,400 keys, attention spread over {perplexity:.0f}", fontsize=9)
    axis.set_xticks(budgets, [str(b) for b in budgets])
    axis.minorticks_off()
    low, high = (np.log10([r["rms"] for r in own]).min(), np.log10([r["rms"] for r in own]).max())
    powers = range(int(np.floor(low)), int(np.ceil(high)) + 1)
    axis.set_yticks([10.0**p for p in powers], [f"{10.0**p:g}" for p in powers])
    axis.set_xlabel("keys read by a query")
    axis.set_ylabel("error against exact attention")
    axis.legend(frameon=False, loc="lower left")


def write(records: list[dict[str, Any]]) -> None:
    """Write the accuracies with their intervals and conditions."""
    conditions = {"command": command_line(), "versions": versions(), "hardware": hardware()}
    means = {
        name: [
            vars(mean_with_interval([r["accuracy"][at] for r in records if r["memory"] == name]))
            for at in range(TEST_SEGMENTS)
        ]
        for name in (*MEMORIES, PIXELS)
    }
    text = json.dumps(conditions | {"records": records, "means": means}, indent=1)
    (RESULTS / "token_memory.json").write_text(text + "\n")


def main(out: Path = OUT, measured: bool = False) -> None:
    """Train and measure, unless that is done; then draw."""
    if not measured:
        write(measure())
    records, errors = (
        json.loads((RESULTS / f"{name}.json").read_text())["records"]
        for name in ("token_memory", "tail_correction")
    )
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "text.color": DARK}):
        figure = Figure(figsize=(9.6, 3.4), layout="constrained")
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.3, 1, 1))
        draw_streams(left, records)
        draw_errors(middle, errors, 24.0)
        draw_errors(right, errors, 64.0)
        for axis in (left, middle, right):
            axis.spines["right"].set_visible(False)
        figure.savefig(out, dpi=110, metadata={"Software": None})
    print(out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    names = [name for name in sys.argv[1:] if name != "--draw-only"]
    main(Path(names[0]) if names else OUT, measured="--draw-only" in sys.argv)
