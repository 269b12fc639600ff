"""Settings from a YAML file, and messages about those that do not fit."""

from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import ValidationError


def first_message(error: ValidationError) -> str:
    """Return the first fault of a pydantic error in one line."""
    fault = error.errors()[0]
    field = ".".join(map(str, fault["loc"]))
    text = fault["msg"].removeprefix("Value error, ")
    return f"{field}={fault['input']!r}: {text}." if field else text


def read_config(path: str | PathLike[str]) -> dict[str, Any]:
    """Read a YAML file of settings to change.

    Raises
    ------
    OSError
        If it cannot be read.
    ValueError
        If it is not a mapping or not YAML; names are checked where the settings are used.
    """
    import yaml

    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        place = getattr(error, "problem_mark", None)
        where = f", line {place.line + 1}" if place is not None else ""
        raise ValueError(f"{path}{where} is not YAML. Write lines such as 'epochs: 5'.") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ValueError(
            f"{path} holds {type(found).__name__}, not settings. Write lines such as 'epochs: 5'."
        )
    return {str(key): value for key, value in found.items()}
