"""Draw docs/images/token-attention.png: which tokens attend to which, and the memory it takes.

A small vision transformer whose tokens, patches of 2 x 2 pixels, attend to their four nearest
tokens learns scikit-learn's digits when this runs (no download). For three test digits the picture
shows the patch with most ink and the four that it attends to in the last layer, in the head that
weighs them most unevenly. The curve is from benchmarks/results/layer_memory.json.

    .venv/bin/python examples/token_attention_figure.py [OUT.png]
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from nearwise_lab.nn.vit import VisionTransformer
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "images" / "token-attention.png"
MEMORY = ROOT / "benchmarks" / "results" / "layer_memory.json"
EPOCHS, BATCH, K, SEED = 25, 64, 4, 0
SIDE = 4  # tokens per side
SHOWN = (0, 3, 7)


def main(out: Path = OUT) -> None:
    """Train, predict, draw."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    split = train_test_split(
        x, torch.tensor(labels), test_size=0.2, random_state=SEED, stratify=labels
    )
    x_train, x_test, y_train, y_test = split
    model = learn(x_train, y_train)
    with torch.no_grad():
        accuracy = (model(x_test).argmax(1) == y_test).double().mean().item()
    print(f"test accuracy {accuracy:.3f} of {len(y_test)} digits")
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False}):
        figure = Figure(figsize=(9.6, 2.9), layout="constrained")
        *places, right = figure.subplots(1, 4, width_ratios=(1, 1, 1, 1.9))
        for place, digit in zip(places, SHOWN, strict=True):
            show_neighbors(place, model, x_test[y_test == digit][:1])
        rows = [r for r in json.loads(MEMORY.read_text())["results"]["curve"] if r["mib"]]
        draw_curve(right, rows)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=160)
    print(out)


def learn(x: Tensor, y: Tensor) -> VisionTransformer:
    """Train with a cosine schedule, without a validation part: it is a picture."""
    model = VisionTransformer(
        image_size=8, patch_size=2, in_channels=1, n_classes=10, dim=48, depth=3, num_heads=3,
        mlp_dim=96, layer="KNNAttention", layer_options={"n_neighbors": K}, pooling="mean",
        random_state=SEED,
    )  # fmt: skip
    steps = EPOCHS * -(-len(x) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    generator = torch.Generator().manual_seed(SEED)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x), generator=generator).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def show_neighbors(axes: Axes, model: VisionTransformer, image: Tensor) -> None:
    """Draw a digit, its brightest pixel in the lower half, and whom that one asks."""
    attention: Any = model.blocks[-1].attn
    seen: list[Tensor] = []
    hook = attention.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model(image)
        found = attention.neighbors(seen[0])
    hook.remove()
    pixels = image[0, 0]
    token = int(pixels.unfold(0, 2, 2).unfold(1, 2, 2).sum((-2, -1)).argmax())
    head = int(found.weights[0, :, token].amax(-1).argmax())
    asked = found.indices[0, head, token].numpy()
    weights = found.weights[0, head, token].numpy()
    axes.imshow(pixels.numpy(), cmap="gray_r", vmin=0, vmax=1.6)
    look: dict[str, Any] = {"facecolors": "none", "edgecolors": "#0f86c9", "linewidths": 1.6}
    axes.scatter(*place_of(asked), s=60 + 700 * weights, **look)
    axes.scatter(*place_of(np.array([token])), marker="x", s=60, color="#b8430f", linewidths=2)
    axes.set_title("x asks the circled; size: weight", fontsize=8)
    axes.set_axis_off()


def draw_curve(axes: Axes, rows: list[dict[str, Any]]) -> None:
    """Draw peak memory against the number of tokens, both in powers."""
    for name in dict.fromkeys(row["layer"] for row in rows):
        points = sorted((r["tokens"], r["mib"]) for r in rows if r["layer"] == name)
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("tokens N")
    axes.set_title("peak memory, forward and backward, MiB", loc="left", fontsize=9)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)


def place_of(token: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Middle of a patch in pixels: column and row."""
    return 2 * (token % SIDE) + 0.5, 2 * (token // SIDE) + 0.5


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
