"""The study's model: an embedder, multi-head attention over neighbors, sometimes a classifier."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearwise.nn import Embedder, ImageEmbedder
from nearwise.nn.embedders import mlp_trunk
from nearwise.training import TrainingRows
from nearwise.training.encoding import Precision, autocast, encode_in_pieces
from nearwise_lab.experiments.study.inputs import StudyInputs
from nearwise_lab.experiments.study.presets import StudyPreset
from nearwise_lab.nn import MultiHeadNeighborAttention

VOTE_EPS = 1e-8  # added to every class before the vote is normalised again, as there


class TabularMLP(Embedder):
    """The study's tabular embedder: n_numeric -> 256 -> 256 -> dim.

    BatchNorm and GELU follow each hidden layer, then dropout .2 and .1.
    """

    def __init__(self, n_numeric: int, dim: int = 128, normalize: bool = True) -> None:
        config = {"kind": "mlp", "n_numeric": n_numeric, "dim": dim, "normalize": normalize}
        super().__init__(dim, normalize, config)
        self.trunk = mlp_trunk(n_numeric, (256, 256), dim, (0.2, 0.1))


class PixelMLP(TabularMLP):
    """The tabular embedder on the pixels of an image, scaled to [-1, 1]."""

    takes_images = True

    def embed(self, x_num: Tensor, x_cat: Tensor | None = None) -> Tensor:
        """Flat pixels (B, c * h * w) of uint8 or float images (B, c, h, w) in 0..255."""
        return x_num.flatten(1).float() / 127.5 - 1

    def embed_mixed(
        self, x_num: Tensor, x_cat: Tensor | None, partner: Tensor, share: Tensor
    ) -> Tensor:
        """Flat pixels of MixUp rows; see `Embedder.embed_mixed`."""
        flat = self.embed(x_num)
        return share * flat + (1 - share) * flat[partner]


class StudyModel(nn.Module):
    """Embedder and attention, and a linear classifier where the preset trains one.

    Parameters
    ----------
    embedder : Embedder
        Gives keys of unit length.
    n_classes : int
    preset : StudyPreset
        Heads, temperatures and objective.
    """

    def __init__(self, embedder: Embedder, n_classes: int, preset: StudyPreset) -> None:
        super().__init__()
        self.embedder = embedder
        self.n_classes = n_classes
        self.attention = MultiHeadNeighborAttention(
            embedder.dim,
            preset.num_heads,
            temperature=preset.temperature,
            temperature_bounds=preset.temperature_bounds,
        )
        if not preset.distance_bias:
            for parameter in self.attention.distance_bias.parameters():
                nn.init.zeros_(parameter).requires_grad_(False)
        self.attention.log_temperature.requires_grad_(preset.learn_temperature)
        self.neighbors_asked: nn.Linear | None = None
        if preset.learned_k:
            self.neighbors_asked = nn.Linear(embedder.dim, 1)
            nn.init.constant_(self.neighbors_asked.bias, float(preset.n_neighbors))
        trains_classifier = preset.objective == "classifier"
        self.classifier = nn.Linear(embedder.dim, n_classes) if trains_classifier else None

    def weigh(
        self, query: Tensor, neighbors: Tensor, distances: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Weights (B, K) of neighbors, the nearest first; arguments as of the attention.

        With a learned k the weight of those beyond the query's own number fades.
        """
        weights: Tensor = self.attention(query, neighbors, distances, mask)
        if self.neighbors_asked is None:
            return weights
        asked = F.softplus(self.neighbors_asked(query))
        before = torch.arange(weights.shape[1], device=weights.device)
        weights = weights * torch.sigmoid(asked - before - 0.5)
        return weights / weights.sum(dim=1, keepdim=True)

    def parameter_groups(self, preset: StudyPreset) -> list[dict[str, Any]]:
        """Parameters for AdamW: the embedder at its share of the rate, the rest at the whole."""
        slow = [p for p in self.embedder.parameters() if p.requires_grad]
        fast = [
            p
            for name, p in self.named_parameters()
            if p.requires_grad and not name.startswith("embedder.")
        ]
        return [
            {"params": slow, "lr": preset.lr * preset.embedder_lr_ratio},
            {"params": fast, "lr": preset.lr},
        ]


def make_embedder(preset: StudyPreset, inputs: StudyInputs, *, normalize: bool = True) -> Embedder:
    """Build the untrained embedder that the preset names.

    Raises
    ------
    ImportError
        If the backbone needs an extra that is not installed.
    ValueError
        If an image backbone is requested for columns.
    """
    shape = inputs.x_train.shape[1:]
    if preset.backbone == "mlp":
        kind = PixelMLP if inputs.is_images else TabularMLP
        return kind(int(shape.numel()), preset.dim, normalize)
    if not inputs.is_images:
        raise ValueError(
            f"backbone={preset.backbone!r} takes images and {inputs.dataset.name} has columns. "
            'Use backbone="mlp".'
        )
    embedder: Embedder = ImageEmbedder(
        preset.backbone,
        preset.dim,
        image_size=(int(shape[1]), int(shape[2])),
        channels=int(shape[0]),
        projection_norm=preset.projection_norm,
        pretrained=preset.starts_from_imagenet,
        normalize=normalize,
    )
    return embedder


def make_model(preset: StudyPreset, inputs: StudyInputs, seed: int) -> StudyModel:
    """Build the untrained model of a seed; torch's global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = StudyModel(make_embedder(preset, inputs), inputs.n_classes, preset)
    model.embedder.fit_inputs(inputs.x_train)
    return model


def encode(embedder: Embedder, rows: Tensor, device: torch.device, precision: Precision) -> Tensor:
    """Keys (n, dim) float32 of all rows on `device`: eval mode, no gradient, no augmentation."""
    placed = TrainingRows(rows.to(device), torch.zeros(len(rows), dtype=torch.int64, device=device))
    was_training = embedder.training
    embedder.eval()
    try:
        with torch.no_grad(), autocast(device, precision):
            return encode_in_pieces(embedder, placed).float()
    finally:
        embedder.train(was_training)


def vote(weights: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Class probabilities (B, C) of weights and labels (B, K): the study's 1e-8, renormalised."""
    votes = weights.new_zeros(len(weights), n_classes).scatter_add(1, labels, weights)
    votes = votes + VOTE_EPS
    return votes / votes.sum(dim=1, keepdim=True)


def unit(keys: Tensor) -> Tensor:
    """Keys at unit L2 length; those of half precision are a little off it."""
    return F.normalize(keys, dim=1)
