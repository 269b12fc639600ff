"""One training step of the study: the terms of its loss, as they were."""

from typing import NamedTuple

import torch
from torch import Tensor

from nearwise.nn import soft_cross_entropy, soft_targets
from nearwise.training.augment import draw_batch_mix, mix_labels
from nearwise_lab.experiments.study.model import StudyModel, vote
from nearwise_lab.experiments.study.neighbors import Found, Memory
from nearwise_lab.experiments.study.presets import StudyPreset
from nearwise_lab.training.augment import FullAugmentation, augment_fully
from nearwise_lab.training.losses import selective_risk, supervised_contrastive


class Step(NamedTuple):
    """Terms of a batch's loss, unweighted, and what is recorded beside them.

    `entropy` among the terms is the negative entropy of the weights, as it enters the loss;
    `knn_clean` is the vote's NLL against plain labels, None on a mixed batch.
    """

    parts: dict[str, Tensor]
    knn_clean: float | None


def step_losses(
    model: StudyModel,
    rows: Tensor,
    positions: Tensor,
    labels: Tensor,
    neighbors: Found,
    memory: Memory,
    preset: StudyPreset,
    generator: torch.Generator,
    augmentation: FullAugmentation | None = None,
) -> Step:
    """Compute the terms of one batch.

    Parameters
    ----------
    model : StudyModel
        In training mode.
    rows : Tensor
        All training rows.
    positions : int64 Tensor of shape (B,)
        Rows of this batch.
    labels : int64 Tensor of shape (n,)
        Of all training rows.
    neighbors : Found
        Of all training rows, searched at the last refresh.
    memory : Memory
        Keys of the last refresh.
    preset : StudyPreset
    generator : torch.Generator
        On the CPU; decides views and MixUp.
    augmentation : FullAugmentation, optional
        Random changes of the batch's images.
    """
    x, own = rows[positions], labels[positions]
    if augmentation is not None:
        x = augment_fully(x, augmentation, generator)
    mix = draw_batch_mix(preset.mixup_alpha, preset.mixup_probability, len(x), generator, x.device)
    targets = soft_targets(own, model.n_classes)
    if mix is None:
        keys = model.embedder(x)
    else:
        # One share for the whole batch, as there.
        mix = mix._replace(share=mix.share[:1].expand_as(mix.share))
        keys = model.embedder.key(model.embedder.embed_mixed(x, None, *mix))
        targets = mix_labels(own, mix, model.n_classes)
    keys = keys.float()
    if model.classifier is not None:
        logits = model.classifier(keys)
        return Step(
            {"ce": soft_cross_entropy(logits, targets, smoothing=preset.label_smoothing)}, None
        )

    parts: dict[str, Tensor] = {}
    # A mixed query keeps the neighbors, and their distances, of the unmixed row.
    indices, distances = neighbors.indices[positions], neighbors.distances[positions]
    weights = model.weigh(keys, memory.keys[indices], distances)
    proba = vote(weights, labels[indices], model.n_classes)
    wanted = soft_targets(targets, model.n_classes, preset.label_smoothing)
    nll = -(wanted * proba.log()).sum(dim=1)
    parts["knn"] = nll.mean()
    parts["entropy"] = -torch.special.entr(weights).sum(dim=1).mean()
    if preset.selective_weight:
        parts["selective"] = selective_risk(nll, proba.amax(dim=1))
    if preset.contrastive_weight:
        # The labels here are those of the unmixed rows, mixed or not.
        contrast = supervised_contrastive(
            keys, own, model.n_classes, temperature=preset.contrastive_temperature,
            over="pairs" if preset.contrastive_kind == "pairs" else "rows",
        )  # fmt: skip
        if preset.contrastive_kind == "margin":
            contrast = contrast - preset.contrastive_margin
        parts["contrastive"] = contrast
    clean = None
    if mix is None:
        clean = float(-proba.detach()[torch.arange(len(own), device=own.device), own].log().mean())
    return Step(parts, clean)


def total_loss(parts: dict[str, Tensor], preset: StudyPreset) -> Tensor:
    """Weighted sum of the terms."""
    weights = {
        "ce": 1.0,
        "knn": preset.knn_weight,
        "contrastive": preset.contrastive_weight,
        "entropy": preset.entropy_weight,
        "selective": preset.selective_weight,
    }
    return torch.stack([weights[name] * part for name, part in parts.items()]).sum()
