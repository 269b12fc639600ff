"""Parts of a regressor's folder: tensors, JSON, and scikit-learn models by skops."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearwise.estimators.fit.number_base import NumberBase, NumberCandidate
from nearwise.estimators.inputs.rows import ColumnsOfNumbers
from nearwise.estimators.model.fitted_model import FittedRegressor
from nearwise.estimators.model.memory_views import SpaceSpec
from nearwise.estimators.model.number_memory import LOCATION, TARGET, NumberViews
from nearwise.estimators.model.number_predictor import NumberModels, NumberPredictor, Spread
from nearwise.estimators.storage.model_schema import check_number_json
from nearwise.estimators.storage.row_storage import unpack_indexes
from nearwise.estimators.storage.stored_parts import (
    check_bank,
    filled,
    pack_candidate,
    pack_table,
    part_of_folder,
    under,
    unpack_encoder,
    unpack_models,
    unpack_table,
)
from nearwise.memory import Folder, MemoryBank
from nearwise.nn import PretrainedNumberHead

KIND, OLDEST = "attention k-NN regressor", 8
OPENED_BY, Columns = "AttnKNNRegressor.load", ColumnsOfNumbers  # as in `class_parts`
_UNITS = ("center", "scale", "least", "most", "logs")  # fields about a candidate's unit


def pack_predictor(
    predictor: NumberPredictor,
) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, bytes]]:
    """Tensors, JSON and blobs of a predictor, without its indexes."""
    bank_tensors, bank_meta = predictor.views.bank.state()
    models, blobs = predictor.row_models, dict[str, bytes]()
    tensors = {f"bank/{name}": tensor for name, tensor in bank_tensors.items()}
    tensors |= {f"head/{k}": v for k, v in predictor.head.state_dict().items()}
    meta: dict[str, Any] = pack_table(models, tensors) | {
        "bank": bank_meta,
        "specs": [spec.to_json() for spec in predictor.views.specs],
        "index": predictor.views.index,
        "history": predictor.history,
        "head": predictor.head.config,
        "choice": predictor.choice,
        "center": models.center,
        "scale": models.scale,
        "spread": predictor.spread._asdict(),
        "bounds": [v if np.isfinite(v) else None for v in (predictor.lower, predictor.upper)],
        "base": None,
    }
    if models.base is not None:
        meta["base"] = _packed_base(models.base, tensors, blobs)
    return tensors, meta, blobs


def _packed_base(
    base: NumberBase, tensors: dict[str, Tensor], blobs: dict[str, bytes]
) -> dict[str, Any]:
    candidates = []
    for one in base.candidates:
        units = {name: getattr(one, name) for name in _UNITS}
        candidates.append(pack_candidate(one, tensors, blobs) | units)
    return {"weights": base.weights, "center": base.center, "candidates": candidates}


def unpack_predictor(folder: Folder, trusted: Sequence[str]) -> NumberPredictor:
    """Rebuild a predictor from the result of `pack_predictor`, with a checked JSON part."""
    meta, tensors = folder.meta, folder.tensors
    with part_of_folder("side columns"):
        check_bank(meta, tensors)
        _check_columns(meta, tensors)
    with part_of_folder("head"):
        make = partial(PretrainedNumberHead, **meta["head"])
        head = filled(make, under(tensors, "head/"))
    with part_of_folder("bank"):
        bank = MemoryBank.from_state(under(tensors, "bank/"), meta["bank"])
    encoder = unpack_encoder(folder)
    features, texts = unpack_table(folder, encoder)
    base = None if meta["base"] is None else _unpack_base(folder, trusted)
    models = NumberModels(encoder, features, base, meta["center"], meta["scale"], texts=texts)
    lower, upper = meta["bounds"]
    return NumberPredictor(
        encoder=encoder,
        row_models=models,
        views=NumberViews(
            encoder.n_columns,
            bank,
            [SpaceSpec(**spec) for spec in meta["specs"]],
            meta["index"],
            states=unpack_indexes(meta, tensors, bank),
        ),
        head=head,
        choice=meta["choice"],
        history=meta["history"],
        spread=Spread(**meta["spread"]),
        lower=-np.inf if lower is None else lower,
        upper=np.inf if upper is None else upper,
    )


def _check_columns(meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Raise ValueError unless targets and left-out predictions are one float64 per row."""
    n_rows = len(tensors["bank/ids"])
    for name in (TARGET, *([] if meta["base"] is None else [LOCATION])):
        column = tensors[f"bank/columns.{name}"]
        if column.dtype != torch.float64 or column.shape != (n_rows,):
            raise ValueError(f"bank/columns.{name} is not one float64 per row")


def _unpack_base(folder: Folder, trusted: Sequence[str]) -> NumberBase:
    meta, candidates = folder.meta["base"], []
    for described in meta["candidates"]:
        models = unpack_models(folder, described, trusted)
        fields = {name: described[name] for name in _UNITS}
        name, view = described["name"], described["view"]
        candidates.append(NumberCandidate(name, models[0], view, models, **fields))
    return NumberBase(candidates, meta["weights"], meta["center"])


def own_meta(fitted: FittedRegressor) -> dict[str, Any]:
    """Empty JSON: a regressor has only predictor and rows."""
    return {}


def checked(content: Folder, path: Path) -> Folder:
    """Check the JSON part; ValueError if an entry is wrong."""
    check_number_json(content.meta)
    return content


def rebuilt(meta: dict[str, Any], common: dict[str, Any]) -> FittedRegressor:
    """Fitted model from its common fields."""
    return FittedRegressor(**common)


def predictions(fitted: FittedRegressor, columns: dict[str, Tensor]) -> Tensor:
    """Predictions of the base, in standard deviations of the targets."""
    return columns.get(LOCATION, torch.zeros(1)) / fitted.predictor.row_models.scale
