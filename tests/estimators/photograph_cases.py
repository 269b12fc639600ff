"""Photographs of two colors, and random weights of the network that embeds them."""

import functools

import numpy as np
from PIL import Image

from nearwise.nn import lite0
from tests.nn.lite0_weights import write_weights

SIDE = 72


def photographs(n=60, seed=0, channels=3):
    """Stripes of two widths, in noise: two classes."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    images = rng.integers(0, 60, (n, SIDE, SIDE, channels), dtype=np.uint8)
    for row, label in enumerate(y):
        wide = 4 + 20 * label
        lit = (np.arange(SIDE) + rng.integers(wide)) // wide % 2 == 1
        images[row, lit] += 150
    return images, np.array(["fine", "wide"])[y]


def mixed_folder(root, n=24, seed=0):
    """Write photographs of mixed sizes into class folders; some are grey, turned or tiny."""
    rng = np.random.default_rng(seed)
    for number, (pixels, label) in enumerate(zip(*photographs(n, seed), strict=True)):
        height, width = rng.integers(66, 150, 2).tolist() if number % 8 else (20, 30)
        image = Image.fromarray(pixels).resize((width, height))
        image = image.convert({2: "L", 3: "RGBA", 4: "P"}.get(number % 8, "RGB"))
        exif = Image.Exif()
        if number % 8 == 5:
            exif[0x0112] = 6  # on its side
            image = image.transpose(Image.Transpose.ROTATE_90)
        (root / label).mkdir(parents=True, exist_ok=True)
        image.save(root / label / f"{number:02}.png", exif=exif)
    return root


def install_weights(monkeypatch, folder, seed=0):
    """Replace the package of weights by random ones, as if it were installed."""
    path = folder / "lite0.pth"
    sha256 = write_weights(path, seed)
    read = functools.cache(lambda: lite0.read_lite0(path, sha256))
    monkeypatch.setattr(lite0, "is_installed", lambda: True)
    monkeypatch.setattr(lite0, "lite0", read)


def remove_weights(monkeypatch):
    """Make the package of weights appear not to be installed."""
    monkeypatch.setattr(lite0, "find_spec", lambda name: None)
    monkeypatch.setattr(lite0, "is_installed", lambda: False)
    monkeypatch.setattr(lite0, "lite0", lite0_of_no_package)


def lite0_of_no_package():
    """Look for the package anew."""
    return _REAL.__wrapped__()


_REAL = lite0.lite0
