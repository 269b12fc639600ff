"""Parse settings, seeds and data sets from the command line of the lab."""

import os
from collections.abc import Iterable
from typing import Any

from nearwise.cli.rows.parsing import parse_numbers, split_list


def parse_settings(option: str, texts: Iterable[str] | None) -> dict[str, Any]:
    """Read settings such as "epochs=5": the last value of each key, values as YAML.

    ValueError, with the name of the option, if a text has no key or no =, or is not YAML.
    """
    import yaml

    settings: dict[str, Any] = {}
    for text in texts or ():
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise ValueError(f"{option} {text!r} is not KEY=VALUE. Write {option} epochs=5.")
        try:
            settings[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ValueError(f"{option} {text!r}: {value!r} is not a value. Quote it.") from None
    return settings


def change_settings(
    settings: dict[str, Any], option: str, texts: Iterable[str] | None
) -> dict[str, Any]:
    """Return settings changed by texts such as "epochs=5"; "field.lr=0.001" is a nested key."""
    changed = dict(settings)
    for key, value in parse_settings(option, texts).items():
        *path, last = key.split(".")
        inside = changed
        for name in path:
            former = inside.get(name)
            inside[name] = dict(former) if isinstance(former, dict) else {}
            inside = inside[name]
        inside[last] = value
    return changed


def parse_seeds(text: str) -> list[int]:
    """Read seeds such as "0-4", "0,2,7" or "0-2,9"; see `parse_numbers`."""
    return parse_numbers("--seeds", text)


def parse_limit(text: str) -> tuple[int, int]:
    """Read the maximum number of training and test rows, such as "5000,2000"."""
    parts = split_list(text)
    if len(parts) != 2 or not all(part.isdecimal() and int(part) > 1 for part in parts):
        raise ValueError(
            f"--limit {text!r} is not a pair of numbers. Write --limit TRAIN,TEST, such as "
            "5000,2000."
        )
    return int(parts[0]), int(parts[1])


def paths_among(*datasets: str) -> list[str]:
    """Return the files of "FILE:TARGET", and folders; a name alone is a registered data set."""
    files = [dataset.rpartition(":")[0] or dataset for dataset in datasets]
    known = [":" not in dataset and os.sep not in dataset for dataset in datasets]
    return [file for file, is_name in zip(files, known, strict=True) if not is_name]


def image_set_name(name: str) -> str:
    """Name of an image set, where a table has the short one: the digits' images."""
    return "digits-images" if name == "digits" else name
