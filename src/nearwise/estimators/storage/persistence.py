"""A fitted classifier as a folder: tensors, JSON, and scikit-learn parts through skops."""

import inspect
import os
import platform
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from nearwise.estimators.fit.base import Base, Candidate
from nearwise.estimators.fit.embedding import Embedding
from nearwise.estimators.inputs.images import ImageEncoder
from nearwise.estimators.inputs.labels import label_list
from nearwise.estimators.inputs.rows import KnownColumns
from nearwise.estimators.inputs.table import TableEncoder
from nearwise.estimators.model.array_models import from_arrays, kind_of
from nearwise.estimators.model.class_prior import ClassCorrection
from nearwise.estimators.model.fitted_model import FittedModel, FolderState, StreamState
from nearwise.estimators.model.label_model import LabelModel
from nearwise.estimators.model.log_linear_pool import Acceptance, Calibration, Merge
from nearwise.estimators.model.memory_views import BASE, FOLD, OPINION, MemoryViews, SpaceSpec
from nearwise.estimators.model.predictor import JudgedRows, Judgement, Predictor
from nearwise.estimators.model.row_models import (
    FeatureSpace,
    ImageNetworks,
    RowModels,
    StageSpace,
    TableModels,
)
from nearwise.estimators.noise import noisy_labels
from nearwise.estimators.settings import Settings
from nearwise.estimators.storage.journaling import REMOVE, replay
from nearwise.estimators.storage.model_schema import (
    StoredJournal,
    check_json,
    check_params,
    read_cv,
    replace_former,
    stored_cv,
)
from nearwise.estimators.storage.row_storage import (
    pack_indexes,
    pack_rows,
    unpack_indexes,
    unpack_rows,
)
from nearwise.estimators.storage.stored_base import dump_model, load_model, untrusted_types
from nearwise.estimators.storage.stored_parts import (
    InvalidPartError,
    check_classes,
    check_features,
    check_tensors,
    filled,
    part_of_folder,
    under,
)
from nearwise.functional.devices import choose_device
from nearwise.memory import (
    Change,
    Folder,
    Journal,
    MemoryBank,
    StoreError,
    folder_generation,
    locked_folder,
    read_folder,
    write_folder,
)
from nearwise.nn import PretrainedNeighborHead, build_network, network_config
from nearwise.training.settings import plain_message
from nearwise.warn import warn_user

KIND = "attention k-NN classifier"
# Moves whenever the stored form or the parameters move; tests/store keeps a folder of each version.
VERSION, _OLDEST, _ONE_HEAD = 8, 3, 7
_FEW = 4  # rows that a folder is tried with
_CLOSE = 1e-6  # a base of one's own may sum in another order each time


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


def pack_predictor(
    predictor: Predictor,
) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, bytes]]:
    """Take a predictor apart into tensors, JSON and blobs; its indexes excepted."""
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


def _packed_classes(classes: ClassCorrection | None) -> dict[str, Any] | None:
    return None if classes is None else classes.to_json()


def _packed_judgement(judged: Judgement | Predictor) -> dict[str, Any]:
    of_views = judged.of_views
    return {
        "acceptance": asdict(judged.acceptance),
        "part_temperatures": list(judged.part_temperatures),
        "class_correction": _packed_classes(judged.classes),
        "views": None
        if of_views is None
        else {
            "merge": judged.merge,
            "temperatures": list(of_views[:3]),
            "classes": _packed_classes(of_views.classes),
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
    predictor: Predictor, tensors: dict[str, Tensor], meta: dict[str, Any], blobs: dict[str, bytes]
) -> None:
    if predictor.row_models.embedding is not None:
        _pack_embedding(predictor.row_models.embedding, tensors, meta)
    if predictor.encoder.kind == "images":
        networks = cast(ImageNetworks, predictor.row_models)
        _pack_stages(networks, tensors, meta)
        meta["use_head"] = networks.use_head
        return
    models = cast(TableModels, predictor.row_models)
    meta["features"], arrays = models.features.to_state()
    tensors |= {f"features/{name}": torch.from_numpy(a) for name, a in arrays.items()}
    if models.base is not None:
        _pack_base(models.base, tensors, meta, blobs)


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
            kind, arrays = space.features.to_state()
            described[name] = {"encoder": space.encoder.to_json(), "features": kind}
            prefix = f"stage/{number}/{name}/"
            tensors |= {prefix + part: torch.from_numpy(a) for part, a in arrays.items()}
        meta["stages"].append(described)


def _pack_base(
    base: Base, tensors: dict[str, Tensor], meta: dict[str, Any], blobs: dict[str, bytes]
) -> None:
    candidates = []
    for candidate in base.candidates:
        described = {"name": candidate.name, "view": candidate.view}
        kind = kind_of(candidate.folds[0]) or "skops"
        candidates.append(described | {"kind": kind, "n_models": len(candidate.folds)})
        for number, model in enumerate(candidate.folds):
            name = f"base/{candidate.name}/{number}"
            if kind == "skops":
                blobs[name] = dump_model(model)
                continue
            arrays = model.to_arrays().items()
            tensors |= {f"{name}/{part}": torch.from_numpy(np.asarray(a)) for part, a in arrays}
    meta["base"] = {
        "gates": base.gates,
        "n_classes": base.n_classes,
        "nll": base.nll,
        "candidates": candidates,
    }


def unpack_predictor(folder: Folder, trusted: Sequence[str]) -> Predictor:
    """Rebuild a predictor from what `pack_predictor` returned, its JSON part checked."""
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
    images = meta.get("stages") is not None
    encoder = (ImageEncoder if images else TableEncoder).from_json(meta["encoder"])
    views = MemoryViews(
        encoder.n_columns,
        bank,
        [SpaceSpec(**spec) for spec in meta["specs"]],
        meta["index"],
        label_model=label_model,
        states=unpack_indexes(meta, tensors, bank),
    )
    return Predictor(
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
        assert embedding is not None  # check_json saw to it
        return ImageNetworks(encoder, embedding, _unpack_stages(folder), meta["use_head"])
    with part_of_folder("features"):
        features = _unpack_features(meta["features"], encoder, under(folder.tensors, "features/"))
    base = _unpack_base(folder, trusted, label_model)
    shows_opinion = f"bank/columns.{OPINION}" in folder.tensors
    return TableModels(encoder, features, embedding, base, shows_opinion)


def _unpack_features(
    meta: dict[str, Any], encoder: TableEncoder, tensors: dict[str, Tensor]
) -> FeatureSpace:
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    check_features(meta["kind"], encoder, arrays)
    return FeatureSpace.from_state(meta, arrays)


def _unpack_stages(folder: Folder) -> list[dict[str, StageSpace]]:
    stages = []
    for number, described in enumerate(folder.meta["stages"]):
        spaces = {}
        for name, parts in described.items():
            prefix = f"stage/{number}/{name}/"
            with part_of_folder(prefix.rstrip("/")):
                encoder = TableEncoder.from_json(parts["encoder"])
                found = under(folder.tensors, prefix)
                features = _unpack_features(parts["features"], encoder, found)
            spaces[name] = StageSpace(encoder, features)
        stages.append(spaces)
    return stages


def _unpack_views(folder: Folder) -> JudgedRows | None:
    """Rebuild the calibration rows in all views; None where there is one."""
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
    candidates = []
    for described in meta["candidates"]:
        models: list[Any] = []
        for number in range(described["n_models"]):
            name = f"base/{described['name']}/{number}"
            with part_of_folder(name):
                if described["kind"] == "skops":
                    models.append(load_model(folder.blobs[name], trusted))
                else:
                    found = under(folder.tensors, f"{name}/").items()
                    arrays = {part: tensor.numpy() for part, tensor in found}
                    models.append(from_arrays(described["kind"], arrays))
                check_classes(models[-1], meta["n_classes"])
        candidates.append(Candidate(described["name"], models[0], described["view"], models))
    base = Base(candidates, meta["gates"], meta["n_classes"])
    if isinstance(label_model, noisy_labels.ForwardCorrection):
        base.implied = label_model.implied
    base.nll = meta["nll"]
    return base


def plain_params(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters as JSON holds them: numpy's numbers and sequences become Python's."""
    return {str(name): _plain_value(value) for name, value in params.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _plain_value(value.model_dump())
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain_value(entry) for name, entry in value.items()}
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, list | tuple | range):
        return [_plain_value(item) for item in value]
    return value


def pack_model(
    model: Any, fitted: FittedModel
) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, bytes]]:
    """Take one version of a classifier apart into tensors, JSON and blobs."""
    tensors, meta, blobs = pack_predictor(fitted.predictor)
    meta["indexes"], learned = pack_indexes(fitted.predictor.views)
    row_tensors, row_blobs = pack_rows(fitted.rows)
    params = model.get_params(deep=False)
    if params.get("settings") is not None:
        params["settings"] = Settings.of(params["settings"]).stored()
    if "cv" in params:
        params["cv"] = stored_cv(params["cv"])
    params = plain_params(params)
    if not (params["estimator"] is None or isinstance(params["estimator"], str)):
        blobs["param.base"] = dump_model(params.pop("estimator"))
    if not isinstance(params.get("random_state"), int | None):
        params["random_state"] = None  # a generator moves on; the fitted model does not need it
    meta |= {
        "params": params,
        "classes": label_list(fitted.classes),
        "classes_dtype": fitted.classes.dtype.str,
        "n_features_in": fitted.columns.n_features_in_,
        "feature_names_in": fitted.columns.names or [],
        "target_name": fitted.target_name,
        "group_name": fitted.group_name,
        "weight_unit": fitted.weight_unit,
        "stream": asdict(fitted.stream),
        "row_names": None if fitted.row_names is None else fitted.row_names.tolist(),
        "versions": versions(),
    }
    return tensors | learned | row_tensors, plain_params(meta), blobs | row_blobs


def save_model(
    model: Any,
    fitted: FittedModel,
    folder: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    locked: bool = False,
) -> FolderState:
    """Write a version of a classifier to a folder, in one step; see `AttnKNNClassifier.save`.

    `locked`: the caller holds the folder's lock. Gives what is held of the folder now.
    """
    path = Path(folder)
    before = None if overwrite else fitted.folders.get(os.path.realpath(path))
    tensors, meta, blobs = pack_model(model, fitted)
    trusted = sorted({name for blob in blobs_of_base(blobs) for name in untrusted_types(blob)})
    goes_on = before is not None and not before.fitted_anew
    if before is not None and goes_on:
        meta["journal"] = {"lineage": before.lineage, "version": before.version}

    def check(written: Folder) -> None:
        if before is not None:
            _refuse_later_changes(path, before)
        _check_written(model, fitted, written, trusted, path)

    generation = write_folder(
        path,
        kind=KIND,
        format_version=VERSION,
        tensors=tensors,
        meta=meta,
        blobs=blobs,
        check=check,
        replaces=None if before is None else before.generation,
        locked=locked,
    )
    state = FolderState(generation, lineage=generation, version=0, saved=0)
    if before is not None and goes_on:
        state = before._replace(generation=generation, saved=before.version)
    with nullcontext() if locked else locked_folder(path):
        _clear_journal(path, state)
    if trusted:
        warn_user(
            f"{path} holds a base with parts that are only loaded where you trust them. Open it "
            f"with {type(model).__name__}.load({str(path)!r}, trusted={trusted})."
        )
    return state


def note_folder(fitted: FittedModel, folder: str | os.PathLike[str], state: FolderState) -> None:
    """Note that a version, or an earlier one, was written to a folder."""
    key = os.path.realpath(folder)
    held = fitted.folders.get(key)
    if held is not None and held.lineage == state.lineage:  # changed since the folder was written
        state = state._replace(version=max(held.version, state.version))
    fitted.folders[key] = state


def _refuse_later_changes(path: Path, before: FolderState) -> None:
    with Journal(path) as journal:
        later = journal.since(before.lineage, before.version)
    if later:
        n_changes = f"{len(later)} change" + ("s" if len(later) > 1 else "")
        raise StoreError(
            "changed",
            f"{path} has had {n_changes} since it was loaded, and saving now would undo that. Load "
            "it again and repeat the change, save to another folder, or pass overwrite=True to "
            "replace it all the same.",
        )


def _clear_journal(path: Path, state: FolderState) -> None:
    """Take out of the journal what the folder holds now, except removed rows, which undo needs.

    The caller holds the folder's lock. Loading relies on the folder, so that what fails here costs
    space and no change.
    """
    if folder_generation(path) != state.generation:
        return  # saved by another process since
    with Journal(path) as journal:
        try:
            journal.fold(state.lineage, state.version, keep=REMOVE)
        except StoreError:  # of the model that was there before: its own was read before the save
            journal.discard()
        except OSError as error:
            warn_user(f"{path} is saved, but its journal could not be cleared: {error}")


def blobs_of_base(blobs: dict[str, bytes]) -> list[bytes]:
    """Parts of a folder that hold classifiers of the user's own."""
    return [blob for name, blob in blobs.items() if name.startswith(("base/", "param.base"))]


def _check_written(
    model: Any, fitted: FittedModel, written: Folder, trusted: Sequence[str], path: Path
) -> None:
    """Refuse to replace the old folder by one that does not open as the model that was saved.

    Parts of nearwise's own must come back to the bit. A base of one's own must predict as before,
    as only its package knows what it is.
    """
    try:
        stored = rebuilt(type(model), written, trusted, path)
        again, _, _ = pack_predictor(stored.fitted_.predictor)
        changed = [name for name in again if not _same_bits(again[name], written.tensors[name])]
        if changed or not np.array_equal(fitted.classes, stored.classes_):
            raise StoreError("invalid", f"{[*changed, 'classes'][0]} comes back otherwise")
        gap = float((_base_of_few(fitted) - _base_of_few(stored.fitted_)).abs().max())
        if not gap <= _CLOSE:
            raise StoreError("invalid", f"its base predicts otherwise (by {gap:.2g})")
    except StoreError as error:
        raise StoreError(
            "invalid",
            f"{path} was not written: what was read back is not the model "
            f"({error.__cause__ or error}). What was there before is unchanged. This is a fault of "
            "nearwise, or of a base that does not predict the same twice; please report it.",
        ) from error


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, NaN to NaN."""
    first, second = (tensor.cpu().numpy().tobytes() for tensor in (one, other))
    return one.dtype == other.dtype and first == second


def load_model_folder(kind: Any, folder: str | os.PathLike[str], trusted: Sequence[str]) -> Any:
    """Read a classifier of class `kind` that `save_model` wrote."""
    path = Path(folder)
    content, state, changes = _read_with_changes(path)
    model = rebuilt(kind, content, trusted, path)
    fitted = replay(model, model.fitted_, changes)
    state = state._replace(version=state.version + len(changes))
    model.fitted_ = fitted
    note_folder(fitted, path, state)
    return model


def changes_of(folder: str | os.PathLike[str]) -> list[Change]:
    """All changes of a saved classifier since it was fitted, oldest first; nothing is rebuilt."""
    path = Path(folder)
    _, state = _read(path)
    with Journal(path) as journal:
        return journal.history(state.lineage)


def accept_lost_changes(kind: Any, folder: str | os.PathLike[str]) -> bool:
    """Go on from a classifier as it was last saved, if changes since are lost; whether they were.

    Versions and the history begin anew then, so that no version names two states of the memory.
    """
    path = Path(folder)
    with locked_folder(path), Journal(path) as journal:
        content, state = _read(path)
        if not journal.accept_loss(state.lineage, state.saved):
            return False
        model = rebuilt(kind, content, (), path)
        save_model(model, model.fitted_, path, overwrite=True, locked=True)
    return True


def _read_with_changes(path: Path) -> tuple[Folder, FolderState, list[Change]]:
    """Read a folder, and the changes that its journal has beyond it."""
    before = None
    with Journal(path) as journal:
        while True:
            content, state = _read(path)
            try:
                changes = journal.since(state.lineage, state.saved)
                if folder_generation(path) == state.generation:
                    return content, state, changes
            except StoreError as error:
                if error.reason != "changed":
                    raise
                if state.generation == before:
                    raise StoreError(
                        "torn",
                        f"{path} is older than its journal, which was folded into a later state "
                        "of the folder. Restore both from one copy.",
                    ) from error
            before = state.generation  # the folder was saved since: read what there is now


def _read(path: Path) -> tuple[Folder, FolderState]:
    content = read_folder(path, kind=KIND, newest_version=VERSION, oldest_version=_OLDEST)
    lineage, version = content.generation, 0
    if content.meta.get("journal") is not None:
        try:
            held = StoredJournal.model_validate(content.meta["journal"])
        except ValidationError as error:
            raise _invalid(path, error) from error
        lineage, version = held.lineage, held.version
    return content, FolderState(content.generation, lineage, version, saved=version)


def _invalid(path: Path, error: Exception) -> StoreError:
    return StoreError(
        "invalid",
        f"{path} holds what nearwise never writes: {plain_message(error)}. Restore it from a "
        "copy, or fit the model again.",
    )


def rebuilt(kind: Any, content: Folder, trusted: Sequence[str], path: Path) -> Any:
    """Rebuild a classifier from a folder's content; StoreError names the part that is not right."""
    _refuse_former_heads(content, path)
    try:
        with part_of_folder("JSON"):
            content = _upgraded(content)
            meta = content.meta
            check_json(meta)
            params = dict(meta["params"])
            replace_former(params, inspect.signature(kind).parameters)
            check_params(kind, params)
        with part_of_folder("params.cv"):
            if "cv" in params:
                params["cv"] = read_cv(params["cv"])
        with part_of_folder("param.base"):
            if "param.base" in content.blobs:
                params["estimator"] = load_model(content.blobs["param.base"], trusted)
        with part_of_folder("params"):
            if params.get("settings") is not None:
                params["settings"] = Settings.of(params["settings"])
            model = kind(**params)
        with part_of_folder("classes"):
            classes = np.array(meta["classes"], dtype=np.dtype(meta["classes_dtype"]))
        columns = KnownColumns()
        columns.n_features_in_ = meta["n_features_in"]
        if meta["feature_names_in"]:
            columns.feature_names_in_ = np.array(meta["feature_names_in"], dtype=object)
        names = meta["row_names"]
        predictor = unpack_predictor(content, trusted)
        with part_of_folder("rows"):
            rows = unpack_rows(content, len(predictor.views.bank), columns.n_features_in_)
        predictor.to(_device_here(model))
        with part_of_folder("row_names"):
            if names is not None and len(names) != len(rows):
                raise ValueError(f"{len(names)} names for {len(rows)} rows")
        with part_of_folder("model"):
            fitted = FittedModel(
                predictor=predictor,
                columns=columns,
                classes=classes,
                rows=rows,
                row_names=None if names is None else np.array(names, dtype=np.str_),
                weight_unit=meta["weight_unit"],
                target_name=meta["target_name"],
                group_name=meta.get("group_name"),
                stream=StreamState(**meta["stream"]),
            )
            model.fitted_ = fitted = fitted.fading()
        with part_of_folder("models"):
            _base_of_few(fitted)
    except InvalidPartError as error:
        raise _invalid(path, error) from error
    return model


def _refuse_former_heads(content: Folder, path: Path) -> None:
    """Raise a StoreError if a folder holds heads that were trained from scratch."""
    head, made_by = content.meta.get("head"), content.meta.get("versions")
    if content.version >= _ONE_HEAD or not (isinstance(head, dict) and "pooling" in head):
        return
    version = made_by.get("nearwise") if isinstance(made_by, dict) else None
    raise StoreError(
        "older",
        f"{path} was fitted with rows held out once (images, views or a share of the rows) by "
        f"nearwise {version or 'of an earlier version'}, whose heads were trained from scratch "
        f"(NeighborHead). nearwise {versions()['nearwise']} has one pretrained head. Fit the model "
        "again, or open it with the version that made it.",
    )


def _upgraded(content: Folder) -> Folder:
    """Give a folder of an older version the present form."""
    meta, tensors = dict(content.meta), dict(content.tensors)
    meta.pop("memory_budget", None)
    if content.version >= _ONE_HEAD:
        return replace(content, meta=meta)
    for name in ("n_heads", "shared"):
        meta.pop(name, None)
    for name in [name for name in tensors if name.startswith("head/0/")]:
        tensors[name.replace("head/0/", "head/", 1)] = tensors.pop(name)
    folds = tensors.get(f"bank/columns.{FOLD}")
    if folds is not None:  # -1 was of rows that came after the fit
        tensors[f"bank/columns.{FOLD}"] = torch.zeros_like(folds)
    return replace(content, meta=meta, tensors=tensors)


def _base_of_few(fitted: FittedModel) -> Tensor:
    """Let the models see a few remembered rows, and give the base's probabilities, if there is one.

    What no single check of a folder finds shows here: ValueError if these are not finite, or not of
    the width of what is remembered.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = fitted.encoded(fitted.rows[:_FEW], [])
        keys, columns = fitted.predictor.keys_of_new(rows)
    held = fitted.bank.keys | fitted.bank.columns
    for name, made in (keys | columns).items():
        if made.shape[1:] != held[name].shape[1:] or not bool(torch.isfinite(made).all()):
            raise ValueError(f"{name} of remembered rows is not what the memory holds")
    return columns.get(BASE, torch.zeros(1)).exp()


def _device_here(model: Any) -> torch.device:
    """Device of a model that may have been saved on another machine."""
    try:
        return choose_device(Settings.of(model.settings).device)
    except ValueError as error:
        device = choose_device("auto")
        warn_user(
            f'Saved with a device that is not here ({error}); the model is on {device}, by "auto".'
        )
        model.settings = Settings.of(model.settings).changed(device="auto")
        return device
