"""Small files of random weights in the form of the package of EfficientNet-Lite0."""

import hashlib
import math

import torch

from nearwise.nn import lite0

_POOL = 2**18


def random_state(seed=0):
    """Weights that all lie in one small tensor, so that their file is small."""
    pool = torch.randn(_POOL, generator=torch.Generator().manual_seed(seed))
    state = {}

    def add(name, norm, *shape):
        fan_in = math.prod(shape[1:])
        whole = math.prod(shape)
        flat = pool.repeat(-(-whole // _POOL))[:whole] if whole > _POOL else pool[:whole]
        weight = flat.reshape(shape)
        state[f"{name}.weight"] = weight
        scale = torch.full((1,), (2 / fan_in) ** 0.5)
        parts = {"weight": scale, "bias": scale / 4, "running_mean": scale / 8}
        for part, value in {**parts, "running_var": torch.ones(1)}.items():
            state[f"{norm}.{part}"] = value.expand(shape[0])

    add("_conv_stem", "_bn0", 32, 3, 3, 3)
    width = 32
    number = 0
    for expansion, kernel, _, channels, n_blocks in lite0._STAGES:
        for _ in range(n_blocks):
            inside, wide = f"_blocks.{number}.", width * expansion
            if expansion > 1:
                add(f"{inside}_expand_conv", f"{inside}_bn0", wide, width, 1, 1)
            add(f"{inside}_depthwise_conv", f"{inside}_bn1", wide, 1, kernel, kernel)
            add(f"{inside}_project_conv", f"{inside}_bn2", channels, wide, 1, 1)
            width, number = channels, number + 1
    add("_conv_head", "_bn1", lite0.WIDTH, width, 1, 1)
    return state


def write_weights(path, seed=0):
    """Write random weights; returns the SHA-256 of the file."""
    torch.save(random_state(seed), path)
    return hashlib.sha256(path.read_bytes()).hexdigest()
