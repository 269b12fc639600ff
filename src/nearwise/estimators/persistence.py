"""A fitted classifier as a folder: tensors, JSON, and scikit-learn parts through skops."""

import os
import platform
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import skops.io
import torch
from pydantic import BaseModel
from torch import Tensor

from nearwise.estimators.base import Base, Candidate
from nearwise.estimators.class_prior import ClassCorrection
from nearwise.estimators.embedding import Embedding
from nearwise.estimators.feature_space import FeatureSpace
from nearwise.estimators.images import ImageEncoder
from nearwise.estimators.pooling import Acceptance
from nearwise.estimators.row_storage import pack_rows, unpack_rows
from nearwise.estimators.shared import HeldOut, SharedState
from nearwise.estimators.sight import ImageSight, Sight, StageSpace, TableSight
from nearwise.estimators.space import SpaceSpec
from nearwise.estimators.state import Calibration, CrossFittedState, LearnedState
from nearwise.estimators.table import TableEncoder
from nearwise.estimators.transition import Transition
from nearwise.estimators.views import MemoryViews
from nearwise.functional.devices import choose_device
from nearwise.memory import Folder, MemoryBank, read_folder, write_folder
from nearwise.nn import NeighborHead, build_network, network_config

KIND = "attention k-NN classifier"
VERSION = 1
# Types inside scikit-learn models that skops does not trust by itself; each only holds arrays.
TRUSTED = (
    "sklearn.tree._tree.Tree",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.ensemble._hist_gradient_boosting.binning._BinMapper",
    "sklearn._loss.link.Interval",
    "sklearn._loss.link.LogitLink",
    "sklearn._loss.link.MultinomialLogit",
    "sklearn._loss.loss.HalfBinomialLoss",
    "sklearn._loss.loss.HalfMultinomialLoss",
    "sklearn._loss._loss.CyHalfBinomialLoss",
    "sklearn._loss._loss.CyHalfMultinomialLoss",
    "sklearn.neighbors._kd_tree.KDTree",
    "sklearn.neighbors._ball_tree.BallTree",
    "sklearn.metrics._dist_metrics.EuclideanDistance",
    "sklearn.metrics._dist_metrics.EuclideanDistance64",
)


def dump_model(model: Any) -> bytes:
    """Write a scikit-learn model with skops, compressed."""
    blob: bytes = skops.io.dumps(model, compression=zipfile.ZIP_DEFLATED, compresslevel=1)
    return blob


def load_model(blob: bytes, trusted: Sequence[str] = ()) -> Any:
    """Read a model, refusing types that are neither ours nor named by the caller."""
    unknown = [
        name
        for name in skops.io.get_untrusted_types(data=blob)
        if name not in TRUSTED and name not in trusted
    ]
    if unknown:
        raise ValueError(
            f"The saved base holds the types {unknown}, which are not trusted. If you know where "
            "the folder comes from, name them: AttnKNNClassifier.load(folder, trusted=[...])."
        )
    return skops.io.loads(blob, trusted=[*TRUSTED, *trusted])


def versions() -> dict[str, str]:
    """Versions of what a model depends on."""
    import sklearn

    import nearwise

    return {
        "nearwise": nearwise.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "scikit-learn": sklearn.__version__,
        "numpy": np.__version__,
    }


def pack_state(
    state: LearnedState,
) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, bytes]]:
    """Take a state apart into tensors, JSON and blobs."""
    bank_tensors, bank_meta = state.views.bank.state()
    tensors = {f"bank/{name}": tensor for name, tensor in bank_tensors.items()}
    tensors["prior"] = state.prior
    if state.views.transitions is not None:
        tensors["transitions"] = state.views.transitions
    for member, head in enumerate(state.heads):
        tensors |= {f"head/{member}/{k}": v for k, v in head.state_dict().items()}
    meta: dict[str, Any] = {
        "bank": bank_meta,
        "encoder": state.encoder.to_json(),
        "specs": [spec.to_json() for spec in state.views.specs],
        "index": state.views.index,
        "memory_budget": state.views.memory_budget,
        "acceptance": asdict(state.acceptance),
        "part_temperatures": list(state.part_temperatures),
        "class_correction": None if state.classes is None else state.classes.to_json(),
        "choice": state.choice,
        "history": state.history,
        "head": state.heads[0].config,
        "n_members": state.n_members,
        "tta": list(state.tta),
        "n_views": state.n_views,
        "transition": None if state.transition is None else state.transition.to_json(),
    }
    blobs: dict[str, bytes] = {}
    if isinstance(state, SharedState):
        of_views = state.of_views.classes
        meta["shared"] = {
            "merge": state.merge,
            "of_views": list(state.of_views[:3]),
            "classes": None if of_views is None else of_views.to_json(),
        }
        meta["use_head"] = state.sight.use_head
        if state.held is not None:
            tensors |= {f"held/{name}": tensor for name, tensor in state.held.tensors().items()}
        if isinstance(state.sight, ImageSight):
            _pack_embedding(state.sight.embedding, tensors, meta)
            _pack_stages(state.sight, tensors, meta)
        else:
            assert isinstance(state.sight, TableSight)
            _pack_spaces(state.sight.features, state.sight.embedding, tensors, meta)
    else:
        assert isinstance(state, CrossFittedState)  # there is no third kind
        _pack_spaces(state.features, state.embedding, tensors, meta)
        if state.base is not None:
            _pack_base(state.base, meta, blobs)
    return tensors, meta, blobs


def _pack_spaces(
    features: FeatureSpace,
    embedding: Embedding | None,
    tensors: dict[str, Tensor],
    meta: dict[str, Any],
) -> None:
    meta["features"], arrays = features.to_state()
    tensors |= {f"features/{name}": torch.from_numpy(a) for name, a in arrays.items()}
    if embedding is not None:
        _pack_embedding(embedding, tensors, meta)


def _pack_embedding(embedding: Embedding, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    meta["embedding"] = {
        "kind": embedding.kind,
        "networks": [network_config(network) for network in embedding.networks],
    }
    for member, network in enumerate(embedding.networks):
        tensors |= {f"network/{member}/{k}": v for k, v in network.state_dict().items()}


def _pack_stages(sight: ImageSight, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    meta["stages"] = []
    for member, spaces in enumerate(sight.stages):
        described = {}
        for name, space in spaces.items():
            kind, arrays = space.features.to_state()
            described[name] = {"encoder": space.encoder.to_json(), "features": kind}
            prefix = f"stage/{member}/{name}/"
            tensors |= {prefix + part: torch.from_numpy(a) for part, a in arrays.items()}
        meta["stages"].append(described)


def _unpack_stages(folder: Folder) -> list[dict[str, StageSpace]]:
    members = []
    for member, described in enumerate(folder.meta["stages"]):
        spaces = {}
        for name, parts in described.items():
            found = _under(folder.tensors, f"stage/{member}/{name}/")
            arrays = {part: tensor.numpy() for part, tensor in found.items()}
            features = FeatureSpace.from_state(parts["features"], arrays)
            spaces[name] = StageSpace(TableEncoder.from_json(parts["encoder"]), features)
        members.append(spaces)
    return members


def _pack_base(base: Base, meta: dict[str, Any], blobs: dict[str, bytes]) -> None:
    meta["base"] = {
        "gates": base.gates,
        "n_classes": base.n_classes,
        "nll": base.nll,
        "transition": None if base.transition is None else base.transition.tolist(),
        "candidates": [(c.name, c.view) for c in base.candidates],
    }
    for candidate in base.candidates:
        for fold, model in enumerate(candidate.folds):
            blobs[f"base/{candidate.name}/{fold}"] = dump_model(model)


def unpack_state(folder: Folder, trusted: Sequence[str]) -> SharedState | CrossFittedState:
    """Rebuild a state from what `pack_state` returned."""
    meta, tensors = folder.meta, folder.tensors
    prior = tensors["prior"]
    heads = []
    for member in range(meta["n_members"]):
        head = NeighborHead(prior=prior, **_tupled(meta["head"]))
        head.load_state_dict(_under(tensors, f"head/{member}/"))
        heads.append(head.eval())
    specs = [SpaceSpec(**spec) for spec in meta["specs"]]
    bank = MemoryBank.from_state(_under(tensors, "bank/"), meta["bank"])
    images = "stages" in meta
    encoder = (ImageEncoder if images else TableEncoder).from_json(meta["encoder"])
    views = MemoryViews(
        bank, specs, meta["index"], meta["memory_budget"], transitions=tensors.get("transitions")
    )
    views.with_keys = bool(meta["head"].get("bilinear"))
    common: dict[str, Any] = {
        "encoder": encoder,
        "views": views,
        "prior": prior,
        "heads": heads,
        "acceptance": Acceptance(**meta["acceptance"]),
        "part_temperatures": tuple(meta["part_temperatures"]),
        "classes": ClassCorrection.from_json(meta.get("class_correction"), prior),
        "choice": meta["choice"],
        "history": meta["history"],
        "tta": tuple(meta.get("tta", ())),
        "n_views": meta.get("n_views", 1),
        "transition": Transition.from_json(meta["transition"]) if meta.get("transition") else None,
    }
    embedding = _unpack_embedding(folder)
    if images:
        assert isinstance(encoder, ImageEncoder) and embedding is not None  # written together
        sight: Sight = ImageSight(
            encoder, embedding, _unpack_stages(folder), prior, meta["use_head"]
        )
        return SharedState(**common, **_unpack_shared(folder), sight=sight)
    assert isinstance(encoder, TableEncoder)
    arrays = {name: tensor.numpy() for name, tensor in _under(tensors, "features/").items()}
    features = FeatureSpace.from_state(meta["features"], arrays)
    if "shared" in meta:
        sight = TableSight(encoder, features, embedding, prior, meta["use_head"])
        return SharedState(**common, **_unpack_shared(folder), sight=sight)
    base = _unpack_base(folder, trusted)
    return CrossFittedState(**common, features=features, embedding=embedding, base=base)


def _unpack_shared(folder: Folder) -> dict[str, Any]:
    shared, held = folder.meta["shared"], _under(folder.tensors, "held/")
    classes = ClassCorrection.from_json(shared.get("classes"), folder.tensors["prior"])
    return {
        "merge": shared["merge"],
        "of_views": Calibration(*shared["of_views"])._replace(classes=classes),
        "held": HeldOut.from_tensors(held) if held else None,
    }


def _unpack_embedding(folder: Folder) -> Embedding | None:
    if "embedding" not in folder.meta:
        return None
    networks = []
    for member, config in enumerate(folder.meta["embedding"]["networks"]):
        network = build_network(config)
        network.load_state_dict(_under(folder.tensors, f"network/{member}/"))
        networks.append(network.eval())
    return Embedding(folder.meta["embedding"]["kind"], networks)


def _unpack_base(folder: Folder, trusted: Sequence[str]) -> Base | None:
    meta = folder.meta.get("base")
    if meta is None:
        return None
    candidates = []
    for name, view in meta["candidates"]:
        folds = [
            load_model(folder.blobs[f"base/{name}/{fold}"], trusted)
            for fold in range(folder.meta["n_members"])
        ]
        candidates.append(Candidate(name, folds[0], view, folds))
    through = None if meta.get("transition") is None else np.array(meta["transition"])
    base = Base(candidates, meta["gates"], meta["n_classes"], through)
    base.nll = meta["nll"]
    return base


def _tupled(config: dict[str, Any]) -> dict[str, Any]:
    """Head settings as they were before JSON made lists of tuples; older folders' null too."""
    sizes, null = config["k_ensemble"], config["null"]
    return config | {
        "k_ensemble": None if sizes is None else tuple(sizes),
        "key_widths": tuple(config.get("key_widths", ())),
        "null": _renamed_null(null) if isinstance(null, bool) else null,
    }


def _renamed_null(switched_on: bool) -> str | None:
    return "auto" if switched_on else None


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}


def plain_params(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters as JSON holds them: numpy's numbers and sequences become Python's."""
    return {name: _plain_value(value) for name, value in params.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _plain_value(value.model_dump())
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return plain_params(value)
    if isinstance(value, list | tuple | range):
        return [_plain_value(item) for item in value]
    return value


def save_model(model: Any, folder: str | os.PathLike[str]) -> None:
    """Write a fitted classifier to a folder, in one step."""
    tensors, meta, blobs = pack_state(model._state)
    row_tensors, row_blobs = pack_rows(model._rows)
    params = plain_params(model.get_params(deep=False))
    if not (params["base"] is None or isinstance(params["base"], str)):
        blobs["param.base"] = dump_model(params.pop("base"))
    params["checkpoint_dir"] = params["cache_dir"] = None  # folders of this machine
    if not isinstance(params["random_state"], int | None):
        params["random_state"] = None  # a generator moves on; the fitted model does not need it
    meta |= {
        "params": params,
        "classes": model.classes_.tolist(),
        "classes_dtype": model.classes_.dtype.str,
        "n_features_in": model.n_features_in_,
        "feature_names_in": getattr(model, "feature_names_in_", np.array([])).tolist(),
        "target_name": model.target_name_,
        "weight_unit": model._weight_unit,
        "stream": model._stream.to_json(),
        "row_names": None if model.row_names_ is None else model.row_names_.tolist(),
        "versions": versions(),
    }
    write_folder(
        Path(folder),
        kind=KIND,
        format_version=VERSION,
        tensors=tensors | row_tensors,
        meta=meta,
        blobs=blobs | row_blobs,
    )


def load_model_folder(kind: Any, folder: str | os.PathLike[str], trusted: Sequence[str]) -> Any:
    """Read a classifier of class `kind` that `save_model` wrote."""
    content = read_folder(Path(folder), kind=KIND, newest_version=VERSION)
    meta = content.meta
    params = dict(meta["params"])
    if "null_neighbor" in params:  # before nearwise 0.2
        params["null"] = _renamed_null(params.pop("null_neighbor"))
    if "param.base" in content.blobs:
        params["base"] = load_model(content.blobs["param.base"], trusted)
    model = kind(**params)
    model.classes_ = np.array(meta["classes"], dtype=np.dtype(meta["classes_dtype"]))
    model.n_features_in_ = meta["n_features_in"]
    if meta["feature_names_in"]:
        model.feature_names_in_ = np.array(meta["feature_names_in"], dtype=object)
    model.target_name_ = meta["target_name"]
    model._weight_unit = meta["weight_unit"]
    model._rows = unpack_rows(content)
    names = meta.get("row_names")  # folders before nearwise 0.2 have none
    model.row_names_ = None if names is None else np.array(names, dtype=np.str_)
    state = unpack_state(content, trusted)
    embedding = state.sight.embedding if isinstance(state, SharedState) else state.embedding
    device = _device_here(model)
    for network in [] if embedding is None else embedding.networks:
        network.to(device)
    state.place(device)
    model._adopt(state)
    model._resume_stream(meta.get("stream"))
    return model


def _device_here(model: Any) -> torch.device:
    """Device of a model that may have been saved on another machine."""
    try:
        return choose_device(model.device)
    except ValueError as error:
        device = choose_device("auto")
        warnings.warn(
            f'Saved with a device that is not here ({error}); the model is on {device}, by "auto".',
            UserWarning,
            stacklevel=4,
        )
        model.device = "auto"
        return device
