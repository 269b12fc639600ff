"""Fit to photographs: to their features by a frozen network, as to a table of ready embeddings."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

from torch import Tensor

from nearwise.estimators.fit.problem import FitSettings, Problem
from nearwise.estimators.inputs.images import EncodedImages, ImageEncoder
from nearwise.estimators.inputs.rows import AnyRows
from nearwise.estimators.inputs.shared_work import once
from nearwise.estimators.inputs.table import TableEncoder
from nearwise.estimators.model.class_predictor import ClassPredictor
from nearwise.estimators.model.memory_views import EMBEDDED
from nearwise.estimators.model.photographs import PhotographModels, embed
from nearwise.estimators.model.row_models import TableModels
from nearwise.estimators.progress import Progress
from nearwise.memory.computed import read_or_compute
from nearwise.nn import lite0
from nearwise.training.checkpoint import content_hash
from nearwise.training.encoding import FORMAT_VERSION, KIND

_STAGE = "embedding images"


def fit_photographs(
    problem: Problem,
    settings: FitSettings,
    progress: Progress,
    fit_table: Callable[[Problem, FitSettings, Progress], ClassPredictor],
) -> ClassPredictor:
    """Fit to images by `fit_table`; the features of a single view are kept in the memory."""
    encoder = cast(ImageEncoder, problem.encoder)
    backbone = lite0.lite0().to(settings.device)
    features, *others = once(
        "features of a fit",
        (problem.rows,),
        lambda: _features(backbone, problem, settings, progress),
    )
    table = TableEncoder()
    rows = table.fit(features.double().numpy())
    views: list[AnyRows] = [table.transform(view.double().numpy()) for view in others]
    encoder.resizes = True
    problem.choice |= {"photographs": lite0.NAME, "image_size": list(encoder.size)}
    of_table = replace(problem, encoder=table, rows=rows, views=views, tta=())
    predictor = fit_table(of_table, settings.model_copy(update={"embedder": "auto"}), progress)
    if not others:
        predictor.views.bank.columns[EMBEDDED] = features
    models = PhotographModels(encoder, backbone, cast(TableModels, predictor.row_models))
    return replace(predictor, encoder=encoder, row_models=models, tta=problem.tta)


def _features(
    backbone: lite0.EfficientNetLite0, problem: Problem, settings: FitSettings, progress: Progress
) -> list[Tensor]:
    """Features (n, 1280) of every view: as remembered, or embedded, or from the checkpoints."""
    if problem.embedded is not None:
        return [problem.embedded]
    encoder = cast(ImageEncoder, problem.encoder)
    progress.stage(_STAGE)
    views = cast(list[EncodedImages], problem.all_views)
    n_all = sum(map(len, views))

    def embedded(view: EncodedImages, before: int) -> Tensor:
        def compute() -> dict[str, Tensor]:
            def report(done: int) -> None:
                progress.part(before + done, n_all)

            return {_STAGE: embed(backbone, encoder, view, report)}

        if settings.checkpoint is None:
            return compute()[_STAGE]
        named = {"images": encoder.network_inputs(view)[0]}
        path = settings.checkpoint / f"images-{content_hash([lite0.SHA256], named)[:32]}"
        found = read_or_compute(path, compute, kind=KIND, version=FORMAT_VERSION, what="embeddings")
        return found[_STAGE]

    return [embedded(view, at * len(view)) for at, view in enumerate(views)]
