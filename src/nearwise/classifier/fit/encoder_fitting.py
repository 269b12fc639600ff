"""How a sight is fitted: the feature space of a table, the networks, the depths of a backbone."""

from typing import Any, cast

from torch import Tensor

from nearwise.classifier.fit.cross_fitting import (
    embedder_kind,
    fit_embedding,
    laid_over,
    training_settings,
)
from nearwise.classifier.fit.embedding import Depths
from nearwise.classifier.fit.feature_space import choose_feature_space
from nearwise.classifier.fit.problem import FitSettings, Problem
from nearwise.classifier.fit.progress import Progress
from nearwise.classifier.inputs.images import (
    EncodedImages,
    ImageEncoder,
    image_backbone,
    image_config,
)
from nearwise.classifier.inputs.table import Encoded
from nearwise.classifier.model.row_encoders import ImageSight, StageSpace, TableSight, average_views

_EPOCHS_OF_VIEWS = 12
_DEPTHS = 3  # deepest stages of a backbone that neighbors are sought at


def table_sight(
    problem: Problem,
    settings: FitSettings,
    progress: Progress,
    choice: dict[str, Any],
    history: list[dict[str, Any]],
) -> TableSight:
    """Choose the feature space and train the networks of a table or of ready embeddings."""
    memory, _ = problem.folds[0]
    encoder, rows = problem.table
    kind = embedder_kind(problem, settings)
    kind = "deep" if settings.embedder == "auto" else kind
    train = {} if kind is None else training_settings(kind, problem, settings)
    if kind is not None and problem.views and "epochs" not in settings.train:
        train["epochs"] = max(train["epochs"], _EPOCHS_OF_VIEWS)
    progress.stage("features")
    features, choice["feature_nll"] = choose_feature_space(
        encoder,
        rows.take(memory),
        problem.labels[memory],
        settings.n_neighbors,
        metric=settings.metric,
        seed=settings.seed,
        memory_budget=settings.memory_budget,
    )
    choice["features"] = features.kind

    def keys() -> Tensor:
        blind = TableSight(encoder, features, None, problem.prior)
        views = (rows, *problem.views)
        return average_views([blind(cast(Encoded, view)) for view in views]).keys["features"]

    settings.label_fitter.fit(problem, settings, keys, progress, choice)
    second = problem.views[0] if problem.views else None
    embedding = fit_embedding(kind, train, problem, settings, progress, choice, history, second)
    use_head = settings.base is not None
    return TableSight(encoder, features, embedding, problem.prior, use_head)


def image_sight(
    problem: Problem,
    settings: FitSettings,
    progress: Progress,
    choice: dict[str, Any],
    history: list[dict[str, Any]],
) -> ImageSight:
    """Train the networks of images, and map the depths of their backbones."""
    encoder, rows = problem.encoder, problem.rows
    assert isinstance(encoder, ImageEncoder) and isinstance(rows, EncodedImages)
    memory, _ = problem.folds[0]
    kind = image_backbone(encoder, settings.embedder)
    train = image_config(encoder, kind, len(memory), device=settings.device, fast=settings.fast)
    train = laid_over(train, settings, kind)
    sight = _look_deep(kind, train, problem, settings, progress, choice, history)

    def keys() -> Tensor:
        views = [rows, *problem.views]
        return average_views([sight(cast(EncodedImages, view)) for view in views]).keys["features"]

    settings.label_fitter.fit(problem, settings, keys, progress, choice)
    if problem.label_model.as_given:
        return sight
    return _look_deep(kind, train, problem, settings, progress, choice, history)


def _look_deep(
    kind: str,
    train: dict[str, Any],
    problem: Problem,
    settings: FitSettings,
    progress: Progress,
    choice: dict[str, Any],
    history: list[dict[str, Any]],
) -> ImageSight:
    encoder, rows = problem.encoder, problem.rows
    assert isinstance(encoder, ImageEncoder) and isinstance(rows, EncodedImages)
    embedding = fit_embedding(kind, train, problem, settings, progress, choice, history)
    assert embedding is not None  # images always have a network
    progress.stage("depths of the backbone")
    remembered = rows.take(problem.folds[0][0])
    members = range(len(embedding.networks))
    cache = settings.feature_cache
    seen = [embedding.depths(member, encoder, remembered, cache) for member in members]
    stages = [_stage_spaces(one) for one in seen]
    use_head = settings.base is not None
    return ImageSight(encoder, embedding, stages, problem.prior, use_head, cache)


def _stage_spaces(seen: Depths) -> dict[str, StageSpace]:
    """Map the deepest stages, deepest first; that one is called "features"."""
    depths = list(seen.stages.items())[::-1][:_DEPTHS]
    return {
        name if i else "features": StageSpace.fit(values.cpu())
        for i, (name, values) in enumerate(depths)
    }
