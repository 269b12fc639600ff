"""Small tables and settings that train in a second or two."""

import torch

from nearwise.nn import TableEmbedder, build_network
from nearwise.training import TrainConfig, TrainingRows

N_CLASSES = 3


def blobs(n_rows=120, seed=0, first_id=0, categories=False, noise=0.5):
    """Three overlapping groups of rows; ids count on from `first_id`."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(N_CLASSES, (n_rows,), generator=generator)
    centers = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    x_num = centers[labels] + noise * torch.randn(n_rows, 2, generator=generator)
    x_cat = torch.randint(3, (n_rows, 1), generator=generator) if categories else None
    return TrainingRows(x_num, labels, x_cat, torch.arange(first_id, first_id + n_rows))


def small_network(categories=False, head=False, seed=0, **options):
    config = TableEmbedder(2, (3,) if categories else (), **{"dim": 4, **options}).config
    return build_network({"embedder": config, "n_classes": N_CLASSES, "head": head}, seed=seed)


def quick(**settings):
    common = {"epochs": 4, "batch_size": 32, "lr": 1e-2, "patience": None}
    return TrainConfig(**{**common, **settings})


def weights_of(network):
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def same_weights(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def timeless(history):
    """History without what differs between two runs of the same settings."""
    return [{k: v for k, v in record.items() if k != "seconds"} for record in history]
