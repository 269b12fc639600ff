"""Images that a look tells apart, as arrays and as a folder, and a quick classifier of them."""

import numpy as np
from PIL import Image

QUICK = {
    "embedder": "resnet-small",
    "cv": 0.25,
    "head": {"epochs": 3},
    "train": {"epochs": 4, "batch_size": 32},
    "embedder_options": {"dim": 16},
    "random_state": 0,
}
# For tests of anything but what is learned.
BRIEF = {**QUICK, "head": {"epochs": 1}, "train": {"epochs": 1}}


def patches(n=120, side=8, channels=1, seed=0):
    """Noise with a bright upper or lower half: two classes that a look tells apart."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    images = rng.integers(0, 120, (n, side, side, channels), dtype=np.uint8)
    for row, label in enumerate(y):
        images[row, label * side // 2 : (label + 1) * side // 2] += 100
    return images, np.array(["up", "down"])[y]


def named_folder(root, n=100, seed=0):
    """Write images as up/000.png, down/001.png, ..."""
    for number, (image, label) in enumerate(zip(*patches(n, seed=seed), strict=True)):
        (root / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(root / label / f"{number:03}.png")
    return root
