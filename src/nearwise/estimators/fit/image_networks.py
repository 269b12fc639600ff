"""Image networks: training for keys and predictions, and for the search of wrong labels."""

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch

from nearwise.estimators.fit.embedding import Depths, Embedding
from nearwise.estimators.fit.networks import changed_by_user, fit_apart, fit_embedding
from nearwise.estimators.fit.problem import FitSettings, Problem, Unseen, make_folds
from nearwise.estimators.inputs.images import (
    EncodedImages,
    ImageEncoder,
    image_backbone,
    image_config,
    image_views,
)
from nearwise.estimators.model.row_models import (
    ImageNetworks,
    StageSpace,
    average_views,
)
from nearwise.estimators.progress import Progress
from nearwise.nn.fast_cnn import FAST_CNN_WIDTHS
from nearwise.training import TrainConfig

_FEW = 5_000  # most images for which smaller networks underfit and longer training raises the NLL
_DEPTHS = 3  # number of deepest backbone stages searched for neighbors


def fit_image_networks(
    problem: Problem, settings: FitSettings, progress: Progress
) -> ImageNetworks:
    """Train the image networks, and fit the maps of their backbone depths."""
    encoder, _ = _images(problem)
    kind = image_backbone(encoder, settings.embedder)
    memory, _ = problem.folds[0]
    networks = _LabelNetworks(kind, problem, settings, progress)
    settings.label_fitter.fit(problem, settings, networks.unseen, progress)
    likelihood = problem.label_model.likelihood(problem.labels)
    correcting = likelihood is not None and len(memory) > _FEW
    train = _training(kind, encoder, len(memory), settings, correcting=correcting)
    embedding = fit_embedding(kind, train, problem, settings, progress, likelihood=likelihood)
    assert embedding is not None  # images always have a network
    progress.stage("layers of the backbone")
    use_head = settings.base is not None
    return replace(_with_depths(embedding, problem, memory, settings), use_head=use_head)


@dataclass(frozen=True)
class _LabelNetworks:
    """Networks for the detection of wrong labels.

    If they are trained with mirrored images, they also predict mirrored images, but no other views
    of the classifier, so that fits with different views share the networks. A network memorizes
    wrong labels in its training rows. With many images a fast-cnn therefore has half its channels,
    which memorize less and take a third of the time, and other networks train half the epochs.
    With few images channels and epochs stay.
    """

    kind: str
    problem: Problem
    settings: FitSettings
    progress: Progress

    def unseen(self) -> Unseen:
        """Keys and predictions of each memory row from a network trained on the other half.

        Held-out rows are predicted by both networks and get keys from the first. The keys of each
        network fill separate columns, so that rows with keys of different networks are far apart.
        """
        problem, settings = self.problem, self.settings
        memory, held_out = problem.folds[0]
        n_rows = len(problem.labels)
        keys, log_proba = [], torch.full((2, n_rows, problem.n_classes), torch.nan)
        for number, fold in enumerate(make_folds(problem.labels[memory], 2, settings.seed)):
            half, other = (memory[part] for part in fold)
            embedding, views = self._fit(half, number)
            networks = _with_depths(embedding, problem, half, settings, 1)
            predicted = np.concatenate([other, held_out])
            seen = average_views([networks(view.take(predicted)) for view in views])
            assert seen.base_log_proba is not None  # images always have a head
            log_proba[number, predicted] = seen.base_log_proba
            keyed = other if number else predicted
            own = torch.zeros(n_rows, seen.keys["features"].shape[1])
            own[keyed] = seen.keys["features"][: len(keyed)]
            keys.append(own)
        first, second = log_proba[:, held_out].argmax(2)
        return Unseen(
            torch.cat(keys, dim=1),
            torch.log_softmax(log_proba.nanmean(0), dim=1),
            agreement=float((first == second).float().mean()),
        )

    def _fit(self, rows: np.ndarray, number: int) -> tuple[Embedding, list[EncodedImages]]:
        """Train one network; returns it with the image views for its predictions."""
        kind, problem, settings = self.kind, self.problem, self.settings
        encoder, images = _images(problem)
        n_memory = len(problem.folds[0][0])
        options = settings.embedder_options
        epochs = _training(kind, encoder, n_memory, settings)["epochs"]
        if n_memory > _FEW and kind in FAST_CNN_WIDTHS:
            widths = options.get("widths", FAST_CNN_WIDTHS[kind])
            options = options | {"widths": [-(-width // 2) for width in widths]}
        elif n_memory > _FEW:
            epochs = -(-epochs // 2)
        changes = {"train": settings.train | {"epochs": epochs}, "embedder_options": options}
        changed = settings.model_copy(update=changes)
        train = _training(kind, encoder, len(rows), changed)
        name = f"true labels, network {number + 1} of 2"
        network = fit_apart(kind, train, problem, changed, rows, number, name, self.progress)
        augment = TrainConfig(**train).augment
        mirrored = image_views(images, ("flip",)) if augment is not None and augment.flip else []
        return Embedding(kind, [network]), [images, *mirrored]


def _images(problem: Problem) -> tuple[ImageEncoder, EncodedImages]:
    return cast(ImageEncoder, problem.encoder), cast(EncodedImages, problem.rows)


def _training(
    kind: str,
    encoder: ImageEncoder,
    n_rows: int,
    settings: FitSettings,
    *,
    correcting: bool = False,
) -> dict[str, Any]:
    """Training settings for `n_rows` images, with the user's changes."""
    train = image_config(
        encoder,
        kind,
        n_rows,
        device=settings.device,
        epochs=settings.train.get("epochs"),
        correcting=correcting,
    )
    return changed_by_user(train, settings, kind)


def _with_depths(
    embedding: Embedding,
    problem: Problem,
    rows: np.ndarray,
    settings: FitSettings,
    n_depths: int = _DEPTHS,
) -> ImageNetworks:
    """Fit maps of the deepest stages of networks to the images at these positions."""
    encoder, images = _images(problem)
    remembered, cache = images.take(rows), None
    if settings.checkpoint_dir is not None and settings.embedder_options.get("frozen"):
        cache = settings.checkpoint_dir / "frozen-backbones"
    each = range(len(embedding.networks))
    depths = [embedding.depths(at, encoder, remembered, cache) for at in each]
    stages = [_stage_spaces(of_network, n_depths) for of_network in depths]
    return ImageNetworks(encoder, embedding, stages, cache=cache)


def _stage_spaces(depths: Depths, n_depths: int) -> dict[str, StageSpace]:
    """Fit maps of the deepest stages, deepest first; the deepest is named "features"."""
    names = list(depths.stages)[::-1][:n_depths]
    spaces = {name: StageSpace.fit(depths.stages[name].cpu()) for name in names}
    return {"features": spaces.pop(names[0])} | spaces
