"""Parts of a classifier's folder: tensors, JSON, and scikit-learn models by skops."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from nearwise.estimators.fit.base import Base, Candidate
from nearwise.estimators.fit.embedding import Embedding
from nearwise.estimators.inputs.images import ImageEncoder
from nearwise.estimators.inputs.labels import label_list
from nearwise.estimators.inputs.rows import KnownColumns
from nearwise.estimators.inputs.shared_work import once
from nearwise.estimators.inputs.table import TableEncoder
from nearwise.estimators.model.class_predictor import ClassPredictor, JudgedRows, Judgement
from nearwise.estimators.model.class_prior import ClassCorrection
from nearwise.estimators.model.fitted_model import FittedClassifier
from nearwise.estimators.model.label_model import LabelModel
from nearwise.estimators.model.log_linear_pool import Acceptance, Calibration, Merge
from nearwise.estimators.model.memory_views import BASE, FOLD, OPINION, MemoryViews, SpaceSpec
from nearwise.estimators.model.photographs import PhotographModels
from nearwise.estimators.model.row_models import (
    ImageNetworks,
    RowModels,
    StageSpace,
    TableModels,
)
from nearwise.estimators.noise import noisy_labels
from nearwise.estimators.storage.model_schema import check_json
from nearwise.estimators.storage.row_storage import unpack_indexes
from nearwise.estimators.storage.stored_parts import (
    check_classes,
    check_tensors,
    filled,
    pack_candidate,
    pack_space,
    pack_table,
    part_of_folder,
    under,
    unpack_encoder,
    unpack_models,
    unpack_space,
    unpack_table,
)
from nearwise.memory import Folder, MemoryBank, StoreError
from nearwise.nn import PretrainedNeighborHead, build_network, lite0, network_config

KIND = "attention k-NN classifier"
OLDEST = 3  # oldest format version that still opens
OPENED_BY = "AttnKNNClassifier.load"  # for messages
Columns = KnownColumns  # class of the training columns
_ONE_HEAD = 7  # first format version with a single head


def pack_predictor(
    predictor: ClassPredictor,
) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, bytes]]:
    """Tensors, JSON and blobs of a predictor, without its indexes."""
    bank_tensors, bank_meta = predictor.views.bank.state()
    tensors = {f"bank/{name}": tensor for name, tensor in bank_tensors.items()}
    tensors["prior"] = predictor.prior
    label_meta, label_tensors = noisy_labels.label_model_state(predictor.label_model)
    tensors |= {f"label_model/{name}": tensor for name, tensor in label_tensors.items()}
    tensors |= {f"head/{k}": v for k, v in predictor.head.state_dict().items()}
    meta: dict[str, Any] = {
        "bank": bank_meta,
        "encoder": predictor.encoder.to_json(),
        "specs": [spec.to_json() for spec in predictor.views.specs],
        "index": predictor.views.index,
        "of_fit": None if predictor.of_fit is None else _packed_judgement(predictor.of_fit),
        "history": predictor.history,
        "head": predictor.head.config,
        "tta": list(predictor.tta),
        "n_views": predictor.n_views,
        "label_model": label_meta,
    }
    meta |= _packed_judgement(predictor)
    blobs: dict[str, bytes] = {}
    if predictor.judged_views is not None:
        named = predictor.judged_views.tensors()
        tensors |= {f"views/{name}": tensor for name, tensor in named.items()}
    _pack_row_models(predictor, tensors, meta, blobs)
    return tensors, meta, blobs


def _packed_judgement(judged: Judgement | ClassPredictor) -> dict[str, Any]:
    of_views = judged.of_views
    return {
        "acceptance": asdict(judged.acceptance),
        "part_temperatures": list(judged.part_temperatures),
        "class_correction": None if judged.classes is None else judged.classes.to_json(),
        "views": None
        if of_views is None
        else {
            "merge": judged.merge,
            "temperatures": list(of_views[:3]),
            "classes": None if of_views.classes is None else of_views.classes.to_json(),
        },
        "choice": judged.choice,
    }


def _unpack_judgement(meta: dict[str, Any]) -> Judgement:
    merge: Merge = "probabilities"
    views, of_views = meta.get("views"), None
    if views is not None:
        merge, classes = views["merge"], ClassCorrection.from_json(views["classes"])
        of_views = Calibration(*views["temperatures"])._replace(classes=classes)
    return Judgement(
        Acceptance(**meta["acceptance"]),
        tuple(meta["part_temperatures"]),
        ClassCorrection.from_json(meta["class_correction"]),
        merge,
        of_views,
        meta["choice"],
    )


def _pack_row_models(
    predictor: ClassPredictor,
    tensors: dict[str, Tensor],
    meta: dict[str, Any],
    blobs: dict[str, bytes],
) -> None:
    models: Any = predictor.row_models
    if models.embedding is not None:
        _pack_embedding(models.embedding, tensors, meta)
    if isinstance(models, ImageNetworks):
        _pack_stages(models, tensors, meta)
        meta["use_head"] = models.use_head
        return
    if isinstance(models, PhotographModels):
        models = models.table
        of_table = pack_table(models, tensors)
        known = {"embedder": lite0.NAME, "sha256": lite0.SHA256}
        meta["photographs"] = known | {"encoder": of_table.pop("encoder")}
        meta |= of_table
    else:
        meta |= pack_table(cast(TableModels, models), tensors)
    if models.base is not None:
        candidates = [pack_candidate(one, tensors, blobs) for one in models.base.candidates]
        meta["base"] = {
            "gates": models.base.gates,
            "n_classes": models.base.n_classes,
            "nll": models.base.nll,
            "candidates": candidates,
        }


def _pack_embedding(embedding: Embedding, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    meta["embedding"] = {
        "kind": embedding.kind,
        "networks": [network_config(network) for network in embedding.networks],
    }
    for number, network in enumerate(embedding.networks):
        tensors |= {f"network/{number}/{k}": v for k, v in network.state_dict().items()}


def _pack_stages(models: ImageNetworks, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    meta["stages"] = []
    for number, spaces in enumerate(models.stages):
        described = {}
        for name, space in spaces.items():
            described[name] = pack_space(space, f"stage/{number}/{name}/", tensors)
        meta["stages"].append(described)


def unpack_predictor(folder: Folder, trusted: Sequence[str]) -> ClassPredictor:
    """Rebuild a predictor from the result of `pack_predictor`, with a checked JSON part."""
    meta, tensors = folder.meta, folder.tensors
    with part_of_folder("prior and side columns"):
        check_tensors(meta, tensors)
    prior = tensors["prior"]
    with part_of_folder("head"):
        make = partial(PretrainedNeighborHead, **meta["head"])
        head = filled(make, under(tensors, "head/"))
    with part_of_folder("bank"):
        bank = MemoryBank.from_state(under(tensors, "bank/"), meta["bank"])
    with part_of_folder("label_model"):
        found = under(tensors, "label_model/")
        label_model = noisy_labels.label_model_from_state(
            meta["label_model"], found, meta["choice"], len(prior)
        )
    images = meta.get("stages") is not None or meta.get("photographs") is not None
    encoder: Any = _unpack_image_encoder(meta) if images else unpack_encoder(folder)
    views = MemoryViews(
        encoder.n_columns if meta.get("photographs") is None else lite0.WIDTH,
        bank,
        [SpaceSpec(**spec) for spec in meta["specs"]],
        meta["index"],
        label_model=label_model,
        states=unpack_indexes(meta, tensors, bank),
    )
    return ClassPredictor(
        encoder=encoder,
        row_models=_unpack_row_models(folder, encoder, trusted, label_model),
        views=views,
        prior=prior,
        head=head,
        history=meta["history"],
        tta=tuple(meta["tta"]),
        n_views=meta["n_views"],
        judged_views=_unpack_views(folder),
        of_fit=None if meta.get("of_fit") is None else _unpack_judgement(meta["of_fit"]),
        **_unpack_judgement(meta)._asdict(),
    )


def _unpack_row_models(
    folder: Folder,
    encoder: Any,
    trusted: Sequence[str],
    label_model: LabelModel,
) -> RowModels:
    meta = folder.meta
    embedding = _unpack_embedding(folder)
    if meta.get("stages") is not None:
        assert embedding is not None  # guaranteed by check_json
        return ImageNetworks(encoder, embedding, _unpack_stages(folder), meta["use_head"])
    photographs = meta.get("photographs")
    if photographs is not None:
        backbone, images = _unpack_backbone(photographs), encoder
        encoder = TableEncoder.from_json(photographs["encoder"])
    features, texts = unpack_table(folder, encoder)
    base = _unpack_base(folder, trusted, label_model)
    shows_opinion = f"bank/columns.{OPINION}" in folder.tensors
    table = TableModels(encoder, features, base, embedding, shows_opinion, texts=texts)
    return table if photographs is None else PhotographModels(images, backbone, table)


def _unpack_image_encoder(meta: dict[str, Any]) -> ImageEncoder:
    """Rebuild the encoder of images; equal ones of several targets are one object."""
    encoder = meta["encoder"]
    name = partial(json.dumps, encoder, sort_keys=True)
    return once(name, (), lambda: ImageEncoder.from_json(encoder))


def _unpack_backbone(described: dict[str, Any]) -> lite0.EfficientNetLite0:
    """Network of a model of photographs; ImportError without the package of its weights."""
    with part_of_folder("photographs"):
        if described["sha256"] != lite0.SHA256:
            raise ValueError(
                f"the model embeds images by weights with the SHA-256 {described['sha256']}, and "
                f"this version of nearwise has those with {lite0.SHA256}. Fit the model again"
            )
        return lite0.lite0()


def _unpack_stages(folder: Folder) -> list[dict[str, StageSpace]]:
    stages = []
    for number, described in enumerate(folder.meta["stages"]):
        spaces = {
            name: unpack_space(parts, f"stage/{number}/{name}/", folder.tensors)
            for name, parts in described.items()
        }
        stages.append(spaces)
    return stages


def _unpack_views(folder: Folder) -> JudgedRows | None:
    """Rebuild the calibration rows in all views; None with a single view."""
    if folder.meta.get("views") is None:
        return None
    with part_of_folder("views"):
        judged = JudgedRows.from_tensors(under(folder.tensors, "views/"))
        if len(judged.keyed) != folder.meta["n_views"]:
            raise ValueError(f"{len(judged.keyed)} views of {folder.meta['n_views']}")
        if any(len(keys) != len(judged.ids) for one in judged.keyed for keys in one.keys.values()):
            raise ValueError("not one key per row")
    return judged


def _unpack_embedding(folder: Folder) -> Embedding | None:
    described = folder.meta.get("embedding")
    if described is None:
        return None
    networks = []
    for number, config in enumerate(described["networks"]):
        name = f"network/{number}"
        with part_of_folder(name):
            networks.append(
                filled(partial(build_network, config), under(folder.tensors, f"{name}/"))
            )
    return Embedding(described["kind"], networks)


def _unpack_base(folder: Folder, trusted: Sequence[str], label_model: LabelModel) -> Base | None:
    meta = folder.meta.get("base")
    if meta is None:
        return None
    check = partial(check_classes, n_classes=meta["n_classes"])
    candidates = []
    for one in meta["candidates"]:
        models = unpack_models(folder, one, trusted, check)
        candidates.append(Candidate(one["name"], models[0], one["view"], models))
    base = Base(candidates, meta["gates"], meta["n_classes"])
    if isinstance(label_model, noisy_labels.ForwardCorrection):
        base.implied = label_model.implied
    base.nll = meta["nll"]
    return base


def _refuse_former_heads(content: Folder, path: Path) -> None:
    """Raise StoreError if a folder holds heads of an old kind, trained from scratch."""
    import nearwise

    head, made_by = content.meta.get("head"), content.meta.get("versions")
    if content.version >= _ONE_HEAD or not (isinstance(head, dict) and "pooling" in head):
        return
    version = made_by.get("nearwise") if isinstance(made_by, dict) else None
    raise StoreError(
        "older",
        f"{path} was fitted with rows held out once (images, views or a share of the rows) by "
        f"nearwise {version or 'of an earlier version'}, whose heads were trained from scratch "
        f"(NeighborHead). nearwise {nearwise.__version__} has one pretrained head. Fit the model "
        "again, or open it with the version that made it.",
    )


def _upgraded(content: Folder) -> Folder:
    """Convert a folder of an older format version to the present format."""
    meta, tensors = dict(content.meta), dict(content.tensors)
    meta.pop("memory_budget", None)
    if content.version >= _ONE_HEAD:
        return replace(content, meta=meta)
    for name in ("n_heads", "shared"):
        meta.pop(name, None)
    for name in [name for name in tensors if name.startswith("head/0/")]:
        tensors[name.replace("head/0/", "head/", 1)] = tensors.pop(name)
    folds = tensors.get(f"bank/columns.{FOLD}")
    if folds is not None:  # -1 marked rows added after the fit
        tensors[f"bank/columns.{FOLD}"] = torch.zeros_like(folds)
    return replace(content, meta=meta, tensors=tensors)


def checked(content: Folder, path: Path) -> Folder:
    """Convert a folder to the present format and check its JSON; ValueError or StoreError."""
    _refuse_former_heads(content, path)
    content = _upgraded(content)
    check_json(content.meta)
    return content


def own_meta(fitted: FittedClassifier) -> dict[str, Any]:
    """JSON of the classes, the only part besides predictor and rows."""
    return {"classes": label_list(fitted.classes), "classes_dtype": fitted.classes.dtype.str}


def rebuilt(meta: dict[str, Any], common: dict[str, Any]) -> FittedClassifier:
    """Fitted model from its common fields and the classes in `meta`."""
    with part_of_folder("classes"):
        classes = np.array(meta["classes"], dtype=np.dtype(meta["classes_dtype"]))
    return FittedClassifier(**common, classes=classes)


def predictions(fitted: FittedClassifier, columns: dict[str, Tensor]) -> Tensor:
    """Probabilities of the base, from the columns of `keys_of_new`, for comparison."""
    return columns.get(BASE, torch.zeros(1)).exp()
