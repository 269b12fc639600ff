"""Small images and a small network that trains on them in a second or two."""

import torch
from sklearn.datasets import load_digits

from nearwise.nn import build_network
from nearwise.training import TrainConfig, TrainingRows

MEMORY = {"n_candidates": None, "cache_momentum": 0.5}


def digits(start=0, stop=256):
    """Rows of scikit-learn's digits as uint8 images (n, 1, 8, 8); ids are their positions."""
    X, y = load_digits(return_X_y=True)
    pixels = torch.tensor(X * 255 / 16).round().to(torch.uint8).reshape(-1, 1, 8, 8)
    ids = torch.arange(start, stop)
    return TrainingRows(pixels[start:stop], torch.tensor(y[start:stop]), ids=ids)


def image_network(n_classes=10, seed=0, **options):
    embedder = {"kind": "image", "backbone": "resnet-small", "dim": 16, "image_size": 8}
    config = {
        "embedder": {**embedder, "channels": 1, **options},
        "n_classes": n_classes,
        "head": True,
        "similarity": "cosine",
    }
    return build_network(config, seed=seed)


def few(**settings):
    common = {"epochs": 2, "batch_size": 64, "lr": 3e-3, "warmup_epochs": 0.5}
    return TrainConfig(**{**common, **MEMORY, **settings})


def noise(n=7, channels=3, height=6, width=5, seed=0):
    """Images of random bytes."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(
        0, 256, (n, channels, height, width), generator=generator, dtype=torch.uint8
    )


def compare(fast, slow, atol=0):
    """Compare changed images with those of a slow version."""
    assert fast.dtype == torch.uint8
    expected = torch.tensor(slow, dtype=torch.float64)
    torch.testing.assert_close(fast.double(), expected, atol=atol, rtol=0)
