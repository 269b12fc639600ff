"""What is taken from transformers: weights and how images are prepared for them, quietly."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_RESAMPLE = {2: "bilinear", 3: "bicubic"}


def load_weights(loader: Any, source: str, **options: Any) -> nn.Module:
    """Load a model of transformers from a folder or the hub; refuse one that lacks weights.

    Weights are read from safetensors alone: a pickle (.bin) can run code.
    """
    # float32 whatever the file holds: half precision is a matter of autocast.
    model: nn.Module
    model, found = cached_first(
        loader.from_pretrained,
        source,
        dtype=torch.float32,
        use_safetensors=True,
        output_loading_info=True,
        **options,
    )
    missing = sorted(name for name in found["missing_keys"] if not name.startswith("pooler"))
    if missing:
        raise ValueError(f"its file lacks the weights {', '.join(missing[:3])}.")
    return model


def at_commit(source: str) -> tuple[str, dict[str, str]]:
    """Find the commit of a model on the hub, so that all of its files are read from the same one.

    Parameters
    ----------
    source : str
        A folder; or a name on the hub, NAME (whatever "main" is) or NAME@REVISION.

    Returns
    -------
    name : str
        Of the model, without its revision.
    options : dict
        The commit as "revision", for a loader; empty for a folder.
    """
    from transformers.utils import cached_file

    if Path(source).is_dir():
        return source, {}
    name, _, revision = source.partition("@")
    found = cached_first(
        partial(cached_file, filename="config.json"), name, revision=revision or None
    )
    return name, {"revision": Path(found).parent.name}


def origin(name: str, options: Mapping[str, str]) -> str | None:
    """Return NAME@COMMIT for what `at_commit` found, None for a folder."""
    return f"{name}@{options['revision']}" if options else None


def cached_first(load: Callable[..., Any], source: str, **options: Any) -> Any:
    """Call a loader of transformers on what this machine has, then on the hub."""
    # The hub is asked, with half a minute of retries where there is no network, only for what is
    # not on this machine.
    try:
        return load(source, local_files_only=True, **options)
    except OSError:
        return load(source, **options)


def pair(size: Any) -> tuple[int, int]:
    """Height and width from one number or two."""
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return int(height), int(width)


def preprocessor(source: str, **options: str) -> dict[str, Any]:
    """Pixel statistics from preprocessor_config.json, read as it is: no image library is needed."""
    from transformers.utils import cached_file

    name = "preprocessor_config.json"
    quietly = {
        "_raise_exceptions_for_missing_entries": False,
        "_raise_exceptions_for_connection_errors": False,
    }
    found = cached_file(source, name, local_files_only=True, **quietly, **options)
    found = found or cached_file(source, name, **quietly, **options)
    fields = {} if found is None else json.loads(Path(found).read_text(encoding="utf-8"))
    normalizes = fields.get("do_normalize", True)
    mean = fields.get("image_mean", IMAGENET[0]) if normalizes else (0.0, 0.0, 0.0)
    std = fields.get("image_std", IMAGENET[1]) if normalizes else (1.0, 1.0, 1.0)
    return {
        "image_size": _processed_size(fields),
        "mean": tuple(float(value) for value in mean),
        "std": tuple(float(value) for value in std),
        "resample": _RESAMPLE.get(fields.get("resample", 2), "bilinear"),
    }


def _processed_size(fields: Mapping[str, Any]) -> tuple[int, int] | None:
    size = fields.get("crop_size") if fields.get("do_center_crop") else None
    size = size or fields.get("size")
    if isinstance(size, Mapping):
        edge = size.get("shortest_edge")
        return pair((size["height"], size["width"]) if "height" in size else edge)
    return None if size is None else pair(size)


def first_line(error: Exception) -> str:
    """First line of an error's text, as a sentence."""
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else type(error).__name__
    return text if text.endswith(".") else f"{text}."


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and load reports of transformers inside."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def transformers_module() -> ModuleType:
    """Import transformers, or name the extra that brings it."""
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            'image embedders need the extra "vision": pip install nearwise[vision]'
        ) from error
    return transformers
