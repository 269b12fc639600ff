"""Rare settings of the estimators as one object, and hints for misspelled parameter names."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, ParamSpec

import numpy as np
import torch
from pydantic import Field, ValidationError, field_validator, model_validator

from nearwise.estimators.inputs.images import TTAView, check_tta
from nearwise.memory import EvictionName, IndexName
from nearwise.names import did_you_mean
from nearwise.training import HeadConfig, TrainConfig
from nearwise.training.settings import StrictSettings, plain_message

P = ParamSpec("P")
Preset = Literal["default", "instant"]

# Parameters of other libraries or older versions, with the names used here.
_OTHER_NAMES = {
    "base": "this is estimator=...",
    "class_weight": (
        'class_prior="uniform" counts every class alike (what class_weight="balanced" does '
        "elsewhere), and fit(..., sample_weight=...) weighs rows"
    ),
    "weights": "the attention learns the weights of neighbors",
    "algorithm": 'settings=Settings(index="exact") (or another) says how neighbors are found',
    "p": 'metric="manhattan" and "euclidean" are p=1 and p=2',
    "categorical_features": 'columns={"zip": "category"} makes a column one of categories',
    "seed": "the seed is random_state",
    "n_members": "the number of folds is cv=...",
    "n_folds": "the number of folds is cv=...",
    "n_splits": "the number of folds is cv=...",
    "validation_fraction": "a share of the rows is held out once by cv=0.1",
    "validation_split": "a share of the rows is held out once by cv=0.1",
    "test_size": "a share of the rows is held out once by cv=0.1",
    "epochs": 'networks are trained for settings=Settings(train={"epochs": ...})',
    "embedder_params": "these are settings=Settings(embedder_options={...})",
    "train_params": "these are settings=Settings(train={...})",
    "head_params": "these are settings=Settings(head={...})",
    "memory_budget": "a search works in 256 MiB",
    "cache_dir": "settings=Settings(checkpoint_dir=...) keeps what a frozen backbone returns",
    "pooling": "the head weighs base and neighbors itself",
    "null": "the head decides itself what attention that goes to no neighbor carries",
    "num_heads": "the head comes trained",
    "tta_merge": "fit chooses how views are merged, by the NLL of rows held out",
    "k_ensemble": "averages of sizes showed no gain (docs/explanation/choices.md)",
    "adaptive_k": "choosing fewer neighbors showed no gain (docs/explanation/choices.md)",
    "spaces": "leaving spaces out showed no gain (docs/explanation/choices.md)",
}


class Settings(StrictSettings):
    """Rare settings of `AttnKNNClassifier` and `AttnKNNRegressor`.

    An unsuitable value or an unknown name raises ValueError.

    Parameters
    ----------
    embedder : str, default="auto"
        Network for keys or for the base. Tables: "identity": none. "table": embeddings of columns
        with a linear key, used as a key space. "deep": an MLP with a linear head for the base.
        "auto": "deep" for many ready embeddings and for several views; for other tables from
        2,000 rows "table" if it helps; else none.
        Images: "efficientnet-lite0", pretrained and never trained (extra "images"); "fast-cnn",
        "fast-cnn-wide", "resnet18", "resnet50", "resnet-small"; or a transformers vision model as
        "hf:NAME[@REVISION]" or the path of its folder. "auto": "fast-cnn" for sides of 17 to 64
        pixels, below "resnet-small", above "efficientnet-lite0"; "resnet18" if that is not
        installed, or with `train` or `embedder_options`.
    embedder_options : dict
        Further arguments of `nearwise.nn.ImageEmbedder`: dim, pretrained, frozen and more.
    tta : {"flip", "shift"} or sequence of these, optional
        Further views of every image: mirrored, or four shifted crops. They are used in the keys,
        in the training of the head and in predictions, with calibration after merging.
    device : str, default="auto"
        Device for training networks: "auto", "cpu", "cuda" or "mps".
    capacity : int, optional
        Maximum number of remembered rows after `fit`, `add` and `partial_fit`. None: no bound.
    eviction : {"reservoir", "age"}, default="reservoir"
        Evicted rows beyond the capacity. "reservoir": random ones, so that a uniform sample stays.
        "age": mostly older ones; votes also lose half their weight per `capacity` / 4 new rows.
    calibration : {"auto", "per-class"} or None, default="auto"
        Calibration of predictions. "auto": shrinkage towards the base and a temperature, each only
        if it lowers the out-of-fold NLL. "per-class" also tries biases and scales per class.
    max_per_class : int, optional
        Maximum number of searchable rows per class, weighted for the rows that they represent.
    index : {"auto", "exact", "faiss-flat-l2", "faiss-flat-ip", "hnsw", "ivf-flat"}, default="auto"
        Neighbor index. "auto": exact below 100,000 rows, else "ivf-flat" (approximate `CellIndex`).
    train : dict
        Changed settings of `nearwise.training.TrainConfig`, for the training of networks.
    head : HeadConfig or dict
        Settings for fine-tuning the attention head.
    checkpoint_dir : path, optional
        Folder for training checkpoints, to resume a stopped fit. It also caches the outputs of a
        frozen image backbone by content.

    Examples
    --------
    >>> Settings(index="exact", head={"epochs": 5}).index
    'exact'
    >>> Settings(calibration=None)
    Settings(calibration=None)
    """

    settings_of = "classifier"

    embedder: str = "auto"
    embedder_options: dict[str, Any] = Field(default={})
    tta: tuple[TTAView, ...] = ()
    device: str = "auto"
    capacity: int | None = Field(default=None, ge=2, strict=True)
    eviction: EvictionName = "reservoir"
    calibration: Literal["auto", "per-class"] | None = "auto"
    max_per_class: int | None = Field(default=None, ge=2, strict=True)
    index: IndexName = "auto"
    train: dict[str, Any] = Field(default={})
    head: HeadConfig = HeadConfig.model_validate({})
    checkpoint_dir: Path | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_numpy(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        for name in values:
            if name in _OTHER_NAMES and name not in cls.model_fields:
                raise ValueError(f"Unknown classifier setting {name!r}. Here {_OTHER_NAMES[name]}.")
        return {name: _plain(value) for name, value in values.items()}

    @field_validator("tta", mode="before")
    @classmethod
    def _check_tta(cls, views: Any) -> tuple[TTAView, ...]:
        return check_tta(views)

    @field_validator("train")
    @classmethod
    def _check_train(cls, values: dict[str, Any]) -> dict[str, Any]:
        try:
            TrainConfig(**values)
        except ValidationError as error:
            raise ValueError(plain_message(error)) from error
        return values

    @classmethod
    def of(cls, given: Any) -> "Settings":
        """Make settings of a `Settings` object, a dict or None.

        Raises
        ------
        ValueError
            If a setting is invalid; the message names it.
        """
        if isinstance(given, Settings):
            return given
        if not isinstance(given, Mapping | None):
            raise ValueError(
                f"settings={given!r} must be a Settings or a dict, such as "
                'settings=Settings(index="exact").'
            )
        try:
            return Settings.model_validate(dict(given or {}))
        except ValidationError as error:
            raise ValueError(plain_message(error)) from error

    def changed(self, **changes: Any) -> "Settings":
        """Copy with some settings changed and checked."""
        return Settings.of({name: getattr(self, name) for name in self.model_fields_set} | changes)

    def stored(self) -> dict[str, Any]:
        """Return changed settings as plain data for JSON, without the local `checkpoint_dir`."""
        return self.model_dump(exclude_defaults=True, exclude={"checkpoint_dir"})

    @property
    def calibrate(self) -> bool:
        """Whether the head's share and the temperatures are fitted."""
        return self.calibration is not None

    @property
    def per_class(self) -> bool:
        """Whether biases and scales per class are tried."""
        return self.calibration == "per-class"

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        defaults = {name: field.default for name, field in type(self).model_fields.items()}
        return [(name, value) for name, value in self if value != defaults[name]]


def _plain(value: Any) -> Any:
    """Convert numpy numbers and torch devices to plain Python types."""
    if isinstance(value, torch.device):
        return str(value)
    return value.item() if isinstance(value, np.generic) else value


def hinting(init: Callable[P, None]) -> Callable[P, None]:
    """Decorate a constructor to suggest the right name for an unknown argument."""

    @functools.wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        known = list(inspect.signature(init).parameters)[1:]
        for name in kwargs:
            if name not in known:
                raise TypeError(
                    f"{type(args[0]).__name__} got an unexpected argument {name!r}."
                    f"{unknown_hint(name, known)}"
                )
        init(*args, **kwargs)

    return checked


def unknown_hint(name: str, known: Sequence[str]) -> str:
    """Hint on the right name of an unknown parameter; empty without a similar one."""
    if name in Settings.model_fields:
        return f" It is one of the settings: settings=Settings({name}=...)."
    other = _OTHER_NAMES.get(name)
    fields = [*known, *Settings.model_fields]
    return did_you_mean(name, fields) if other is None else f" Here {other}."


def check_count(name: str, value: Any, least: int) -> None:
    """Raise ValueError unless a value is an integer of at least `least`."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not (whole and value >= least):
        raise ValueError(f"{name}={value!r} must be a whole number of at least {least}.")
