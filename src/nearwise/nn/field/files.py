"""Neural fields on disk: weights that say what they are, and are found by what they say.

``model.safetensors`` holds weights, sizes and how they came about, and is replaced in one move;
``config.json`` repeats the latter for readers.
"""

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from nearwise.nn.field.config import PerceiverConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearwise.nn.field.model import PerceiverAutoencoder

WEIGHTS, CONFIG = "model.safetensors", "config.json"
_KIND = "nearwise-perceiver-autoencoder"
_VERSION = 1


@dataclass(frozen=True)
class FieldFile:
    """A saved neural field, before its weights are read.

    Attributes
    ----------
    folder : Path
    config : PerceiverConfig
    run : dict
        As in `PerceiverAutoencoder`.
    """

    folder: Path
    config: PerceiverConfig
    run: dict[str, Any]


def save_model(model: "PerceiverAutoencoder", folder: str | Path) -> None:
    """Write a model; a process killed at any moment leaves the old or the new one.

    Raises OSError if the folder cannot be written to. Raises ValueError if `model.run` is not JSON.
    """
    path = Path(folder)
    try:
        header = json.dumps(
            {
                "kind": _KIND,
                "version": _VERSION,
                "model": model.config.as_dict(),
                "run": model.run,
            },
            indent=1,
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"model.run cannot be written as JSON: {error}.") from error
    path.mkdir(parents=True, exist_ok=True)
    weights = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    aside = path / f".{secrets.token_hex(8)}"
    try:
        save_file(weights, aside, metadata={"nearwise": header})
        os.replace(aside, path / WEIGHTS)
        aside.write_text(header + "\n", encoding="utf-8")
        os.replace(aside, path / CONFIG)
    finally:
        aside.unlink(missing_ok=True)


def describe_model(folder: str | Path) -> FieldFile:
    """Read what a saved model is, without its weights.

    Raises
    ------
    ValueError
        If there is no such model, it is damaged, or was written by a newer version.
    """
    path = Path(folder)
    file = path / WEIGHTS
    if not file.is_file():
        raise ValueError(
            f"There is no neural field in {path}: {WEIGHTS} is missing. Give a folder that "
            "'nearwise field train' or save() wrote."
        )
    try:
        with safe_open(file, framework="pt") as opened:
            header = json.loads((opened.metadata() or {})["nearwise"])
        kind, version = header["kind"], header["version"]
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{file} is damaged, or no model of nearwise ({error!r}).") from error
    if kind != _KIND:
        raise ValueError(f"{file} holds a {kind}, not a neural field.")
    if version > _VERSION:
        raise ValueError(
            f"{file} has version {version} and this nearwise knows up to {_VERSION}. Upgrade "
            "nearwise: pip install -U nearwise."
        )
    return FieldFile(path, PerceiverConfig.from_dict(header["model"]), dict(header["run"]))


def load_model(
    make: "Callable[[PerceiverConfig], PerceiverAutoencoder]",
    folder: str | Path,
    *,
    expected: PerceiverConfig | None = None,
) -> "PerceiverAutoencoder":
    """Read a model with its weights.

    Raises ValueError if it cannot be read, differs from what is expected or from its config.json
    (the message says in what), or weights are missing, strange or of another shape.

    Parameters
    ----------
    make : callable
        Builds a model of given sizes; its weights are overwritten.
    expected : PerceiverConfig, optional
        What it must be.
    """
    found = describe_model(folder)
    if expected is not None and (differences := found.config.differences(expected)):
        raise ValueError(
            f"The model in {found.folder} is another one than asked for: "
            f"{'; '.join(differences)}. Ask for its sizes, or name another folder."
        )
    _compare_with_config(found)
    model = make(found.config)
    _fill(model, load_file(found.folder / WEIGHTS), found.folder / WEIGHTS)
    model.run = found.run
    return model.eval()


def find_models(folder: str | Path, wanted: Mapping[str, Any]) -> list[FieldFile]:
    """Find the saved models below a folder whose `run` says what is wanted.

    Names of files and folders play no role.

    Parameters
    ----------
    folder : path
        Looked through with all folders in it; need not exist.
    wanted : mapping
        Entries that `run` must have, such as ``{"objective": "sparse", "seed": 0}``.

    Returns
    -------
    found : list of FieldFile
        Those with the most steps first, then by path. Damaged ones are left out.
    """
    found = []
    # os.walk passes over what another process removes meanwhile
    places = sorted(Path(directory) for directory, _, names in os.walk(folder) if WEIGHTS in names)
    for directory in places:
        try:
            one = describe_model(directory)
        except ValueError:
            continue
        if all(name in one.run and one.run[name] == value for name, value in wanted.items()):
            found.append(one)
    return sorted(found, key=lambda one: -int(one.run.get("step", 0)))


def _compare_with_config(found: FieldFile) -> None:
    """Refuse a config.json that was changed by hand: the weights would not follow it."""
    file = found.folder / CONFIG
    if not file.is_file():
        return
    try:
        said = PerceiverConfig.from_dict(json.loads(file.read_text(encoding="utf-8"))["model"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} cannot be read: {error}. Delete or restore it.") from error
    if differences := found.config.differences(said):
        raise ValueError(
            f"{file} and the weights beside it differ: in the weights {'; '.join(differences)}. "
            f"Restore {CONFIG}; sizes of a trained model cannot be changed."
        )


def _fill(model: "PerceiverAutoencoder", weights: Mapping[str, Any], file: Path) -> None:
    expected = model.state_dict()
    faults = [f"{name} is missing" for name in expected if name not in weights]
    faults += [f"{name} is not known" for name in weights if name not in expected]
    faults += [
        f"{name} is {tuple(weights[name].shape)}, not {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise ValueError(f"{file} does not fit its own sizes: {'; '.join(faults[:3])}{more}.")
    model.load_state_dict(dict(weights), strict=True)
