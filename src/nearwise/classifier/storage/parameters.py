"""Parameters as plain data: `cv`, and those that former versions wrote."""

import inspect
from collections.abc import Container
from typing import Any, Literal

import numpy as np
import sklearn.model_selection
from pydantic import TypeAdapter

from nearwise.classifier.fit.problem import is_splitter
from nearwise.warn import warn_user

_SPLITTERS = (
    "KFold",
    "StratifiedKFold",
    "GroupKFold",
    "StratifiedGroupKFold",
    "LeaveOneOut",
    "ShuffleSplit",
    "StratifiedShuffleSplit",
    "GroupShuffleSplit",
    "PredefinedSplit",
)
_NOW_SETTINGS = ("embedder", "tta", "device", "capacity", "eviction")  # parameters, once
_FORMER_EVICTIONS = ("class-balanced", "importance")
_PLAIN: TypeAdapter[Any] = TypeAdapter(int | float | Literal["auto", "latest"] | None)


def stored_cv(cv: Any) -> Any:
    """Give `cv` as it is stored; what cannot be rebuilt becomes "auto", with a warning."""
    if not is_splitter(cv):
        return cv
    kind = type(cv)
    name = kind.__name__
    if name not in _SPLITTERS or kind is not getattr(sklearn.model_selection, name):
        warn_user(
            f"cv={name} is not stored, as only splitters of sklearn.model_selection are: the "
            'loaded model has cv="auto", which its refresh would take. Predictions are the same.'
        )
        return "auto"
    params = {name: getattr(cv, name) for name in inspect.signature(kind).parameters}
    if not isinstance(params.get("random_state"), int | np.integer | None):
        params["random_state"] = None  # a generator moves on
    return {"splitter": name} | params


def read_cv(stored: Any) -> Any:
    """Rebuild `cv`; ValueError if it is neither plain nor a splitter that is known."""
    if not isinstance(stored, dict):
        return _PLAIN.validate_python(stored, strict=True)
    params = dict(stored)
    if (name := params.pop("splitter", None)) not in _SPLITTERS:
        raise ValueError(f"{name!r} is not a splitter of sklearn.model_selection")
    return getattr(sklearn.model_selection, name)(**params)


def replace_former(params: dict[str, Any], known: Container[str]) -> None:
    """Change parameters of former versions, in place, to the `known` ones that there are now."""
    if params.get("preset") == "fast":  # decided about the fit, and not about predictions
        params["preset"] = "default"
    if "cv" in known and {"n_members", "validation_fraction"} <= params.keys():
        _join_old_cv(params)
    if "base" in params and "base" not in known:
        params["estimator"] = params.pop("base")
    replace_former_eviction(params)
    moved = [name for name in _NOW_SETTINGS if name in params and name not in known]
    if moved:
        former = {name: params.pop(name) for name in moved}
        params["settings"] = (params.get("settings") or {}) | former


def replace_former_eviction(params: dict[str, Any]) -> None:
    """Change, in place, how rows are forgotten, where former versions did so in another way."""
    if params.get("eviction") in _FORMER_EVICTIONS:
        warn_user(
            f"The model forgets rows by eviction={params['eviction']!r}, which nearwise no longer "
            'has. Further rows are forgotten by "reservoir".'
        )
        params["eviction"] = "reservoir"


def _join_old_cv(params: dict[str, Any]) -> None:
    """Make `cv` of the two parameters that folders up to version 6 hold in its place."""
    n_folds = _PLAIN.validate_python(params.pop("n_members"), strict=True)
    share = _PLAIN.validate_python(params.pop("validation_fraction"), strict=True)
    if isinstance(share, float):
        params["cv"] = share
    else:
        asked = isinstance(n_folds, int) and n_folds > 1
        params["cv"] = n_folds if asked else "auto"
