"""Row models that all members share: feature space of a table, networks, depths of a backbone."""

from typing import Any, cast

from torch import Tensor

from nearwise.classifier.fit.cross_fitting import (
    changed_by_user,
    embedder_kind,
    fit_embedding,
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
from nearwise.classifier.model.row_models import (
    ImageNetworks,
    StageSpace,
    TableNetworks,
    average_views,
)

_EPOCHS_OF_VIEWS = 12
_DEPTHS = 3  # deepest stages of a backbone that neighbors are sought at


def fit_table_networks(
    problem: Problem, settings: FitSettings, progress: Progress
) -> TableNetworks:
    """Choose the feature space and train the networks of a table or of ready embeddings."""
    memory, _ = problem.folds[0]
    encoder, rows = problem.table
    kind = embedder_kind(problem, settings)
    kind = "deep" if settings.embedder == "auto" else kind
    train = {} if kind is None else training_settings(kind, problem, settings)
    if kind is not None and problem.views and "epochs" not in settings.train:
        train["epochs"] = max(train["epochs"], _EPOCHS_OF_VIEWS)
    progress.stage("features")
    features, problem.choice["feature_nll"] = choose_feature_space(
        encoder,
        rows.take(memory),
        problem.labels[memory],
        settings.n_neighbors,
        metric=settings.metric,
        seed=settings.seed,
        memory_budget=settings.memory_budget,
    )
    problem.choice["features"] = features.kind

    def keys() -> Tensor:
        label_free = TableNetworks(encoder, features, None)
        views = [label_free(cast(Encoded, view))[0] for view in (rows, *problem.views)]
        return average_views(views).keys["features"]

    settings.label_fitter.fit(problem, settings, keys, progress)
    second = problem.views[0] if problem.views else None
    embedding = fit_embedding(kind, train, problem, settings, progress, second)
    use_head = settings.base is not None
    return TableNetworks(encoder, features, embedding, use_head)


def fit_image_networks(
    problem: Problem, settings: FitSettings, progress: Progress
) -> ImageNetworks:
    """Train the networks of images, and map the depths of their backbones."""
    encoder, rows = problem.encoder, problem.rows
    assert isinstance(encoder, ImageEncoder) and isinstance(rows, EncodedImages)
    memory, _ = problem.folds[0]
    kind = image_backbone(encoder, settings.embedder)
    train = image_config(encoder, kind, len(memory), device=settings.device, fast=settings.fast)
    train = changed_by_user(train, settings, kind)
    networks = _with_depths(kind, train, problem, settings, progress)

    def keys() -> Tensor:
        views = [networks(cast(EncodedImages, view))[0] for view in (rows, *problem.views)]
        return average_views(views).keys["features"]

    settings.label_fitter.fit(problem, settings, keys, progress)
    if problem.label_model.as_given:
        return networks
    return _with_depths(kind, train, problem, settings, progress)


def _with_depths(
    kind: str, train: dict[str, Any], problem: Problem, settings: FitSettings, progress: Progress
) -> ImageNetworks:
    encoder, rows = problem.encoder, problem.rows
    assert isinstance(encoder, ImageEncoder) and isinstance(rows, EncodedImages)
    embedding = fit_embedding(kind, train, problem, settings, progress)
    assert embedding is not None  # images always have a network
    progress.stage("depths of the backbone")
    remembered = rows.take(problem.folds[0][0])
    members = range(len(embedding.networks))
    cache = settings.cache_dir
    depths = [embedding.depths(member, encoder, remembered, cache) for member in members]
    stages = [_stage_spaces(of_member) for of_member in depths]
    use_head = settings.base is not None
    return ImageNetworks(encoder, embedding, stages, use_head, cache)


def _stage_spaces(depths: Depths) -> dict[str, StageSpace]:
    """Map the deepest stages, deepest first; that one is called "features"."""
    deepest = list(depths.stages.items())[::-1][:_DEPTHS]
    return {
        name if i else "features": StageSpace.fit(values.cpu())
        for i, (name, values) in enumerate(deepest)
    }
