"""Checks of the estimator's parameters, and resolution of "auto" for the training rows."""

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from nearwise.estimators.fit.base import Candidate, given_candidate
from nearwise.estimators.fit.embedding import TABLE_EMBEDDERS
from nearwise.estimators.fit.problem import FEWEST_HELD_OUT, MOST_FOLDS, FitSettings, Fold
from nearwise.estimators.inputs.images import image_embedder
from nearwise.estimators.model.class_prior import check_class_prior
from nearwise.estimators.settings import Preset, Settings, check_count
from nearwise.functional import METRICS
from nearwise.functional.devices import choose_device
from nearwise.names import did_you_mean
from nearwise.nn.lite0 import NAME as LITE0

_HELD_OUT = 0.1  # share of a hold-out split by "auto"; more with few rows
_MOST_HELD_OUT = 0.5  # largest share, so that enough rows stay in the memory

# Settings that determine the networks of a fit, and so its checkpoints.
_OF_NETWORKS = ("embedder", "embedder_options", "train", "seed", "cv")

# Allowed parameters of preset "instant", which trains nothing, and settings without use in it.
_OF_INSTANT: dict[str, tuple[Any, ...]] = {
    "estimator": ("auto", None),
    "embedder": ("auto", "identity", LITE0),
    "cv": ("auto", None),
}
_UNUSED_BY_INSTANT = ("head", "train", "max_per_class")
_MOST_ASKED, _USUAL_NEIGHBORS = 64, 32

_WITHOUT_FAST = ' "fast" is no preset any more: take "instant", or cv=3 for a shorter default.'
_CHOICES: dict[str, tuple[Any, ...]] = {"preset": get_args(Preset), "metric": METRICS}


def check_settings(
    params: Any,
    n_rows: int,
    n_classes: int,
    seed: int,
    *,
    n_views: int = 1,
    image_size: Sequence[int] | None = None,
    folds: Sequence[Fold] = (),
    given: Callable[[Any], Candidate] = given_candidate,
) -> FitSettings:
    """Check every parameter against the training rows, and resolve "auto".

    `image_size` is height and width of images, None for a table. `folds` come from a splitter
    (`given_folds`); `given` raises ValueError for an unusable base.
    """
    for name, allowed in _CHOICES.items():
        value = getattr(params, name)
        if not any(isinstance(value, type(option)) and value == option for option in allowed):
            options = ", ".join(repr(option) for option in allowed)
            gone = _WITHOUT_FAST if isinstance(value, str) and value == "fast" else ""
            raise ValueError(f"{name}={value!r} is not known. Use one of {options}.{gone}")
    settings = Settings.of(params.settings)
    if params.metric == "manhattan" and settings.index not in ("auto", "exact"):
        raise ValueError(
            f'index={settings.index!r} does not support metric="manhattan": FAISS orders rows by '
            'Euclidean distances and inner products. Use index="exact" (or "auto").'
        )
    base = params.estimator
    if isinstance(base, str) and base != "auto":
        own = "a classifier" if given is given_candidate else "a regressor"
        raise ValueError(f'estimator={base!r} is not known. Use "auto", None or {own}.')
    if base is not None and not isinstance(base, str):
        given(base)
    _check_embedder(settings, image_size is not None)
    if image_size is not None:
        settings = settings.changed(embedder=image_embedder(settings, image_size))
    images = image_size is not None and settings.embedder != LITE0  # a network is trained
    n_views += 0 if images else len(settings.tta)
    if params.preset == "instant":
        _check_instant(params, settings, n_views, images)
    cv = _check_cv(params, folds, n_rows, n_classes, n_views, images)
    _check_unused(params, settings)
    k = _check_neighbors(params.n_neighbors, n_rows)
    return FitSettings(
        **dict(settings) | {"device": str(choose_device(settings.device))},
        n_neighbors=k,
        base=base,
        preset=params.preset,
        metric=params.metric,
        class_prior=check_class_prior(getattr(params, "class_prior", "train"), n_classes),
        seed=seed,
        cv=cv,
        folds=list(folds),
        n_jobs=params.n_jobs,
    )


def _check_instant(params: Any, settings: Settings, n_views: int, images: bool) -> None:
    """Raise ValueError for parameters that do not fit preset "instant"."""
    if images or n_views > 1:
        raise ValueError(
            'preset="instant" is for tables and ready embeddings in one view: images need a '
            "network, and views need rows held out. Use another preset, or embed images first. "
            'Images above 64 pixels are embedded with the extra "images": pip install '
            "nearwise[images]."
        )
    for name, allowed in _OF_INSTANT.items():
        value = settings.embedder if name == "embedder" else getattr(params, name)
        if not any(
            value is one or (isinstance(value, str | int) and value == one) for one in allowed
        ):
            raise ValueError(
                f'{name}={value!r} does not fit preset="instant", which trains nothing. Leave it '
                "out, or use another preset."
            )


def _check_unused(params: Any, settings: Settings) -> None:
    """Raise ValueError for settings without use in the preset, and for too many neighbors."""
    usual, unused = Settings(), _UNUSED_BY_INSTANT if params.preset == "instant" else ()
    changed = [name for name in unused if getattr(settings, name) != getattr(usual, name)]
    if changed:
        raise ValueError(
            f'The settings {", ".join(changed)} do not fit preset="instant", which trains nothing. '
            "Leave them out, or use another preset."
        )
    k = params.n_neighbors
    if isinstance(k, int | np.integer) and k > _MOST_ASKED:
        raise ValueError(
            f"n_neighbors={k} is more than the {_MOST_ASKED} that the attention was trained with. "
            "Use fewer."
        )


def _check_embedder(settings: Settings, images: bool) -> None:
    """Raise ValueError for an embedder of tables with images, or the reverse."""
    name = settings.embedder
    if images and name in TABLE_EMBEDDERS[1:]:
        raise ValueError(
            f"embedder={name!r} is for tables and ready embeddings, but X holds images. Use "
            f'"auto", "{LITE0}", "fast-cnn", "fast-cnn-wide", "resnet18", "resnet50", '
            '"resnet-small", "hf:NAME" or the folder of a model.'
        )
    if images and name == LITE0 and settings.embedder_options:
        raise ValueError(
            f"embedder_options={settings.embedder_options!r} are for a network to train, and "
            f"{LITE0!r} is never trained. Leave them out, or take another embedder."
        )
    if not images and name not in TABLE_EMBEDDERS:
        options = ", ".join(map(repr, TABLE_EMBEDDERS))
        raise ValueError(
            f"embedder={name!r} is not known.{did_you_mean(name, TABLE_EMBEDDERS)} Use one of "
            f"{options}; image embedders take X as uint8 of shape (n, height, width, channels)."
        )
    if not images and (settings.tta or settings.embedder_options):
        raise ValueError(
            "tta and embedder_options are for images. Leave them out, and give further views of "
            "ready embeddings to fit as views=[...]."
        )


def check_held_out(n_rows: int, n_classes: int, fraction: float) -> None:
    """Raise ValueError if a share holds out too few rows for heads and calibration."""
    least = max(FEWEST_HELD_OUT, n_classes)
    if round(fraction * n_rows) < least:
        share = _share_of(least, n_rows)
        wider = f", or a share of {share} or more (cv={share})" if share <= _MOST_HELD_OUT else ""
        raise ValueError(
            f"{fraction:.3g} of {n_rows} rows holds out {round(fraction * n_rows)} to fit the "
            f"attention and the calibration to, and at least {least} are needed: give more rows "
            f'(cv="auto" needs {round(least / _MOST_HELD_OUT)}){wider}.'
        )


def _usual_fraction(n_rows: int, n_classes: int) -> float:
    """Default share of a hold-out split: larger with few rows."""
    enough = _share_of(max(FEWEST_HELD_OUT, n_classes), n_rows)
    return min(max(_HELD_OUT, enough), _MOST_HELD_OUT)


def _share_of(n: int, n_rows: int) -> float:
    return math.ceil(100 * n / n_rows) / 100


def _check_cv(
    params: Any,
    folds: Sequence[Fold],
    n_rows: int,
    n_classes: int,
    n_views: int,
    images: bool,
) -> int | float | Literal["auto"]:
    """Return the number of folds of a cross-fit (or "auto"), or the share of a hold-out split."""
    cv: Any = "auto" if params.cv is None else params.cv
    by_rows = isinstance(cv, str) and cv == "auto"
    if folds:
        cv = len(folds) if len(folds) > 1 else len(folds[0][1]) / n_rows
    elif by_rows and (n_views > 1 or images):
        cv = _usual_fraction(n_rows, n_classes)
    if isinstance(cv, float | np.floating) and 0 < cv < 1:
        if images and not (params.estimator is None or isinstance(params.estimator, str)):
            raise ValueError(
                'The base of images is the network\'s own head. Use estimator="auto" or None; a '
                "classifier of your own needs a table."
            )
        return float(cv)
    whole = isinstance(cv, int | np.integer) and not isinstance(cv, bool)
    if not (by_rows or (whole and 2 <= cv <= MOST_FOLDS)):
        raise ValueError(
            f'cv={params.cv!r} must be "auto", a number of folds from 2 to {MOST_FOLDS}, a '
            'share between 0 and 1 of the rows to hold out once, "latest", or a splitter of '
            "sklearn.model_selection."
        )
    if images or n_views > 1:
        what = "Images" if images else "Rows with several views"
        raise ValueError(
            f'{what} are not cross-fitted, but held out once. Use cv="auto", or give a '
            "share (cv=0.1) or a splitter with a single split."
        )
    return "auto" if by_rows else int(cv)


def _check_neighbors(k: Any, n_rows: int) -> int:
    if k == "auto":
        return min(_USUAL_NEIGHBORS, n_rows - 2)
    check_count("n_neighbors", k, 1)
    if k > n_rows - 1:
        raise ValueError(
            f"n_neighbors={k} exceeds the {n_rows} samples in the memory bank ({n_rows - 1} after "
            "leaving out the query). Lower n_neighbors or add samples."
        )
    return int(k)


def check_checkpoint(
    params: Any,
    settings: FitSettings,
    views: list[pd.DataFrame | np.ndarray],
    codes: np.ndarray,
    weight: np.ndarray | None,
    groups: np.ndarray | None = None,
) -> FitSettings:
    """Set the checkpoint folder of this fit.

    The folder's name has a hash of the data and of the settings that determine the networks. Other
    fits never resume from it, and a fit that differs only in its heads trains no network.
    """
    if settings.checkpoint_dir is None:
        return settings
    if params.random_state is None:
        raise ValueError(
            "checkpoint_dir needs a random_state: without one no later fit repeats this one, and "
            "none could go on from its checkpoints. Give random_state=0, say."
        )
    digest = hashlib.sha256()
    for rows in views:
        if isinstance(rows, pd.DataFrame):
            digest.update(pd.util.hash_pandas_object(rows, index=False).to_numpy().tobytes())
        else:
            digest.update(np.ascontiguousarray(rows).tobytes())
    digest.update(codes.tobytes() + (b"" if weight is None else weight.tobytes()))
    digest.update(b"" if groups is None else b"groups" + groups.tobytes())
    of_networks = {name: getattr(settings, name) for name in _OF_NETWORKS}
    digest.update(repr(of_networks).encode())
    for train, held_out in settings.folds:
        digest.update(b"fold" + train.tobytes() + b"held out" + held_out.tobytes())
    if params.columns is not None:
        digest.update(repr(sorted(params.columns.items())).encode())
    if settings.label_fitter.description is not None:
        base = settings.base
        named = base if base is None or isinstance(base, str) else type(base).__qualname__
        own = sorted(base.get_params().items()) if named != base else None
        # Networks are then fitted to labels estimated from votes and the base.
        of_labels = (
            settings.label_fitter.description,
            settings.n_neighbors,
            settings.metric,
            named,
            own,
        )
        digest.update(repr(of_labels).encode())
    folder = settings.checkpoint_dir / f"fit-{digest.hexdigest()[:16]}"
    return settings.model_copy(update={"checkpoint": folder})
