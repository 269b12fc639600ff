"""The idx files of MNIST: gzip, a magic number, sizes, then bytes."""

import gzip
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearwise.data.images.decode import Images

_UNSIGNED_BYTES = 0x08


@dataclass(frozen=True)
class IdxFiles:
    """An images file and a labels file for each part.

    Parameters
    ----------
    files : dict of str to (str, str)
        Names of the images and the labels file of each part; the same without .gz do as well.
    """

    files: dict[str, tuple[str, str]]

    def find(self, folder: Path, part: str) -> tuple[Path, ...]:
        """Return the images and the labels file; empty where there is neither.

        Raises
        ------
        FileNotFoundError
            If one of the two is missing.
        """
        found = [self._one(folder, name) for name in self.files[part]]
        present = tuple(path for path in found if path is not None)
        if len(present) == 1:
            missing = self.files[part][found.index(None)]
            raise FileNotFoundError(
                f"{folder} holds {present[0].name} but not {missing}. Add it, or remove the other."
            )
        return present

    @staticmethod
    def _one(folder: Path, name: str) -> Path | None:
        candidates = (folder / name, folder / name.removesuffix(".gz"))
        return next((path for path in candidates if path.is_file()), None)

    def read(
        self, paths: tuple[Path, ...], part: str, limit: int | None
    ) -> tuple[Images, NDArray[np.int64]]:
        """Read at most `limit` rows: images of shape (n_rows, height, width, 1), class numbers.

        Raises
        ------
        ValueError
            If a file is damaged, cut short, too long, or the two differ in length; names it.
        """
        images, labels = read_idx(paths[0], 3), read_idx(paths[1], 1)
        if len(images) != len(labels):
            raise ValueError(
                f"{paths[0]} has {len(images):,} images, {paths[1]} has {len(labels):,} labels. "
                "Replace the one that is not the original."
            )
        return images[:limit, :, :, None].copy(), labels[:limit].astype(np.int64)


def read_idx(path: Path, n_dims: int) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes, gzipped where its name ends in .gz.

    Parameters
    ----------
    path : Path
        The file.
    n_dims : int
        Number of dimensions that it must have.

    Returns
    -------
    values : uint8 ndarray with `n_dims` dimensions
        Read-only.

    Raises
    ------
    ValueError
        If the compression is damaged, the magic number or a size is wrong, or bytes are missing
        or left over; names the file.

    References
    ----------
    LeCun, Cortes and Burges, "The MNIST database of handwritten digits", section "File formats".
    """
    try:
        raw = path.read_bytes()
        content = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} cannot be decompressed ({error}). It is damaged or cut short: replace it."
        ) from error
    header = 4 + 4 * n_dims
    magic = bytes((0, 0, _UNSIGNED_BYTES, n_dims))
    if content[:4] != magic or len(content) < header:
        raise ValueError(
            f"{path} starts with the bytes {content[:4].hex() or 'of nothing'}; an idx file of "
            f"unsigned bytes with {n_dims} dimensions starts with {magic.hex()}. Replace it by the "
            "original."
        )
    shape = struct.unpack(f">{n_dims}I", content[4:header])
    expected = int(np.prod(shape, dtype=np.int64))
    if len(content) - header != expected or not expected:
        raise ValueError(
            f"{path} announces {' x '.join(map(str, shape))} = {expected:,} bytes and holds "
            f"{len(content) - header:,}. It is damaged: replace it by the original."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)
