"""Parts of a batch: which rows each has, and the folder that they lie in."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearwise.cli.outputs import check_folder
from nearwise.safe_files import plain, write_aside
from nearwise.warn import warn_user

MANIFEST = "_nearwise_batch.json"  # readers of Parquet folders skip names that begin with "_"
IMAGES_PER_PART = 256


@dataclass(frozen=True)
class Part:
    """Rows that are answered together: a piece of a table, or images; `name` is their file's."""

    name: str
    files: tuple[str, ...]
    piece: int = 0
    n_pieces: int = 1


def parts_of_tables(data: str, *, whole: bool = False) -> list[Part]:
    """Divide a table, or those in a folder, into pieces; each file is one if `whole`."""
    from nearwise.data.tables.pieces import table_files

    path = Path(data)
    parts, in_folder = [], path.is_dir()
    for number, file in enumerate(table_files(path) if in_folder else [path]):
        n = 1 if whole else _pieces(file)
        if not n and in_folder:
            warn_user(f"{file} has no rows, and no part.")
        n = n if in_folder else max(n, 1)  # reading a single one reports it
        names = (
            f"{number:06d}-{piece:05d}-of-{n:05d}-{file.stem[:60]}.parquet" for piece in range(n)
        )
        parts += [Part(name, (str(file),), i, n) for i, name in enumerate(names)]
    return parts


def _pieces(file: Path) -> int:
    """Count the pieces of a table; one if it is damaged, which reading it reports."""
    from nearwise.data.tables.pieces import count_pieces

    try:
        return count_pieces(file)
    except ValueError:
        return 1


def parts_of_images(data: Sequence[str]) -> list[Part]:
    """Divide images, in the order in which one process reads them."""
    from nearwise.data.images.folder import image_files

    files = [str(file) for path in data for file in image_files(Path(path))]
    starts = range(0, len(files), IMAGES_PER_PART)
    return [
        Part(f"{number:06d}-images.parquet", tuple(files[start : start + IMAGES_PER_PART]))
        for number, start in enumerate(starts)
    ]


def left_to_make(
    out: Path, parts: Sequence[Part], reads: Iterable[str | Path], settings: Mapping[str, Any]
) -> list[Part]:
    """Note in a folder what its parts are made of, and give those that are not there yet.

    `settings` are what all parts depend on, the model's version among them. The caller keeps other
    processes away. ValueError if the folder holds anything else, or parts that were made otherwise
    or of files that have changed since.
    """
    check_folder("--out", out, reads)
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; with --engine ray it is a folder of parts.")
    manifest = out / MANIFEST
    left = [part for part in parts if not (out / part.name).is_file()]
    found = {"settings": plain(dict(settings)), "files": _states(parts)}
    if manifest.is_file():
        finished = {file for part in parts if part not in left for file in part.files}
        differs = _differences(_read(manifest), found, finished)
        if differs:
            raise ValueError(
                f"--out {out} has parts of another run: {'; '.join(differs)}. Use the same options "
                "to go on with it, or choose another --out."
            )
        for torn in out.glob(".*.tmp"):  # of a process that was killed
            torn.unlink(missing_ok=True)
    elif out.is_dir() and any(out.iterdir()):
        raise ValueError(
            f"--out {out} holds files and no {MANIFEST}, so they are not parts of a run. Choose a "
            "new folder."
        )
    write_aside(manifest, json.dumps(found, indent=1, ensure_ascii=False).encode())
    return left


def _states(parts: Sequence[Part]) -> dict[str, list[int]]:
    """Size and time of change of each file."""
    files = dict.fromkeys(file for part in parts for file in part.files)
    found = {file: Path(file).stat() for file in files}
    return {file: [state.st_size, state.st_mtime_ns] for file, state in found.items()}


def _read(manifest: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(manifest.read_bytes())
        return {name: dict(content[name]) for name in ("settings", "files")}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(
            f"{manifest} is damaged: nearwise did not write it so. Choose another --out."
        ) from error


def _differences(before: dict[str, Any], now: dict[str, Any], finished: set[str]) -> list[str]:
    """Return the differences; a file of which no part is `finished` may have been repaired."""
    was, settings = before["settings"], now["settings"]
    differs = [
        f"{name} was {was.get(name)!r}, is {settings.get(name)!r}"
        for name in dict.fromkeys([*was, *settings])
        if was.get(name) != settings.get(name)
    ]
    files, states = before["files"], now["files"]
    kinds = {
        "missing": [file for file in files if file not in states],
        "new": [file for file in states if file not in files],
        "changed": [f for f in states if f in finished and files.get(f, states[f]) != states[f]],
    }
    return differs + [
        f"{kind}: {', '.join(found[:3])}{f' and {len(found) - 3} more' if found[3:] else ''}"
        for kind, found in kinds.items()
        if found
    ]
