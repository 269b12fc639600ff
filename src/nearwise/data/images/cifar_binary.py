"""The binary version of CIFAR: rows of one or two label bytes and 3072 bytes of pixels."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearwise.data.images.decode import Images

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE


@dataclass(frozen=True)
class CifarBinary:
    """Files of rows: label bytes (the last is the class), then red, green and blue planes.

    Parameters
    ----------
    folder : str
        Name of the folder that the archive unpacks to, in the set's folder or beside it; the
        files may also lie in the set's folder, or in `python_folder`, converted.
    python_folder : str
        Name of the folder of the python version.
    files : dict of str to tuple of str
        File names of each part, in order.
    n_label_bytes : int
        1 for CIFAR-10, 2 for CIFAR-100 (coarse, fine).
    """

    folder: str
    python_folder: str
    files: dict[str, tuple[str, ...]]
    n_label_bytes: int

    def find(self, folder: Path, part: str) -> tuple[Path, ...]:
        """Return the files of a part in order; empty where there are none.

        Raises
        ------
        FileNotFoundError
            If some of them are missing.
        """
        names = self.files[part]
        for directory in (folder / self.folder, folder.parent / self.folder, *self._others(folder)):
            here = [name for name in names if (directory / name).is_file()]
            if here and len(here) < len(names):
                missing = [name for name in names if name not in here]
                raise FileNotFoundError(
                    f"{directory} lacks {', '.join(missing)} of the binary version. Unpack the "
                    "archive again."
                )
            if here:
                return tuple(directory / name for name in names)
        return ()

    def read(
        self, paths: tuple[Path, ...], part: str, limit: int | None
    ) -> tuple[Images, NDArray[np.int64]]:
        """Read at most `limit` rows: images of shape (n_rows, 32, 32, 3) and class numbers.

        Raises
        ------
        ValueError
            If a file is empty or ends within a row; names it.
        """
        width = self.n_label_bytes + _PIXELS
        parts: list[NDArray[np.uint8]] = []
        left = limit
        for path in paths:
            size = path.stat().st_size
            if not size or size % width:
                raise ValueError(
                    f"{path} has {size:,} bytes, which is no whole number of rows of {width} "
                    "bytes. It is damaged or cut short: unpack the archive again."
                )
            count = -1 if left is None else left * width
            parts.append(np.fromfile(path, dtype=np.uint8, count=count).reshape(-1, width))
            if left is not None:
                left -= len(parts[-1])
                if not left:
                    break
        rows = np.concatenate(parts)
        planes = rows[:, self.n_label_bytes :].reshape(-1, 3, _SIDE, _SIDE)
        X = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
        return X, rows[:, self.n_label_bytes - 1].astype(np.int64)

    def python_version(self, folder: Path) -> Path | None:
        """Return where the files of the python version (pickles) lie, or None."""
        names = [name.removesuffix(".bin") for files in self.files.values() for name in files]
        places = (directory for directory in self._others(folder) if directory.is_dir())
        return next((p for p in places if any((p / name).is_file() for name in names)), None)

    def _others(self, folder: Path) -> tuple[Path, ...]:
        return folder, folder / self.python_folder, folder.parent / self.python_folder
