"""Forms of published image sets on disk: IDX files and Parquet shards."""

import gzip
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nearwise.data.images.decode import Encoded, Images, decode_images

Rows = tuple[Images, NDArray[np.int64]]
_UNSIGNED_BYTES = 0x08


@dataclass(frozen=True)
class IdxFiles:
    """File names of the images and labels of each part; names without .gz work as well."""

    files: Mapping[str, Iterable[str]]

    def find(self, folder: Path, part: str) -> tuple[Path, ...]:
        """Return the images and the labels file; empty where there is neither.

        Raises FileNotFoundError if one of the two is missing.
        """
        present: list[Path] = []
        missing = ""
        for name in self.files[part]:
            paths = [folder / name, folder / name.removesuffix(".gz")]
            if found := [path for path in paths if path.is_file()]:
                present.append(found[0])
            else:
                missing = name
        if len(present) == 1:
            raise FileNotFoundError(
                f"{folder} holds {present[0].name} but not {missing}. Add it, or remove the other."
            )
        return tuple(present)

    def read(self, paths: tuple[Path, ...], limit: int | None) -> Rows:
        """Read at most `limit` rows: images of shape (n_rows, height, width, 1), class numbers.

        Raises ValueError if a file is damaged, cut short, too long, or the two differ in length;
        names it.
        """
        images, labels = read_idx(paths[0], 3), read_idx(paths[1], 1)
        if len(images) != len(labels):
            raise ValueError(
                f"{paths[0]} has {len(images):,} images, {paths[1]} has {len(labels):,} labels. "
                "Replace the one that is not the original."
            )
        return images[:limit, :, :, None].copy(), labels[:limit].astype(np.int64)


def read_idx(path: Path, n_dims: int) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes in `n_dims` dimensions, gzipped where named .gz.

    Raises ValueError if the compression is damaged, the magic number or a size is wrong, or bytes
    are missing or left over; names the file.

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


_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.parquet$")


@dataclass(frozen=True)
class ParquetShards:
    """Files train*.parquet and test*.parquet with a column of images and one of class numbers.

    Images are structs with the file's bytes in "bytes". The files may lie in a sub-folder, as they
    do on the hub.
    """

    image_column: str
    label_column: str
    folder: str

    def find(self, folder: Path, part: str) -> tuple[Path, ...]:
        """Return the shards of a part in order; empty where there are none.

        Raises FileNotFoundError if a shard of a numbered row of shards is missing.
        """
        places = (folder, folder / self.folder)
        found = (tuple(sorted(place.glob(f"{part}*.parquet"))) for place in places)
        paths = next(filter(None, found), ())
        if not paths:
            return ()
        folder = paths[0].parent
        numbers = [match for path in paths if (match := _SHARD.search(path.name))]
        if not numbers:
            return paths
        total = numbers[0][2]
        stem = numbers[0].string[: numbers[0].start()]
        whole = [f"{stem}-{i:05d}-of-{total}.parquet" for i in range(int(total))]
        names = {path.name for path in paths}
        if missing := [name for name in whole if name not in names]:
            raise FileNotFoundError(
                f"{folder} lacks {', '.join(missing)}, of {len(whole)} shards. Add what is "
                "missing, or remove the others."
            )
        if strange := sorted(names - set(whole)):
            raise ValueError(
                f"{folder} holds {', '.join(strange)} beside the {len(whole)} shards "
                f"{whole[0]} ...: which are the {part} part? Keep one of the two."
            )
        return paths

    def read(self, paths: tuple[Path, ...], limit: int | None) -> Rows:
        """Decode at most `limit` rows: images (n_rows, height, width, channels), class numbers.

        Raises ValueError if a file is damaged, lacks a column or an image; names it.
        """
        total = sum(self._n_rows(path) for path in paths)
        n = total if limit is None else min(limit, total)
        codes = np.empty(n, dtype=np.int64)
        X = decode_images(self._images(paths, n, codes), n)
        return X, codes

    def _n_rows(self, path: Path) -> int:
        with _reading(path) as file:
            names = file.schema_arrow.names
            if missing := [c for c in (self.image_column, self.label_column) if c not in names]:
                raise ValueError(f"{path} lacks the columns {missing}; it has {names}.")
            if not file.metadata.num_rows:
                raise ValueError(f"{path} has no rows. Replace it.")
            return int(file.metadata.num_rows)

    def _images(
        self, paths: tuple[Path, ...], n: int, codes: NDArray[np.int64]
    ) -> Iterator[Encoded]:
        """Yield the images one by one and write their class numbers into `codes`."""
        done = 0
        for path in paths:
            contents, labels = self._columns(path)
            keep = min(len(labels), n - done)
            codes[done : done + keep] = labels[:keep]
            for i, content in enumerate(contents[:keep]):
                yield Encoded(f"{path}, row {i}", content)
            done += keep
            if done == n:
                return

    def _columns(self, path: Path) -> tuple[list[bytes], NDArray[np.int64]]:
        try:
            with _reading(path) as file:
                table = file.read([self.image_column, self.label_column]).combine_chunks()
        except (OSError, ValueError) as error:  # pyarrow's errors derive from these two
            raise _damaged(path, error) from error
        images, labels = table.column(self.image_column), table.column(self.label_column)
        if not pa.types.is_struct(images.type) or images.type.get_field_index("bytes") < 0:
            raise ValueError(
                f"{path}: column {self.image_column!r} has the type {images.type}; expected a "
                "struct with the bytes of an image file in its field 'bytes'."
            )
        if not pa.types.is_integer(labels.type) or labels.null_count:
            raise ValueError(
                f"{path}: column {self.label_column!r} has the type {labels.type} and "
                f"{labels.null_count} missing values; expected a class number for each row."
            )
        contents = pc.struct_field(images, "bytes").to_pylist()
        if None in contents:
            raise ValueError(
                f"{path}, row {contents.index(None)} holds no image bytes. Replace the "
                "file by one with the images inside."
            )
        return contents, labels.to_numpy().astype(np.int64)


def _reading(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> ValueError:
    return ValueError(
        f"{path} cannot be read as Parquet: {error}. It is damaged or cut short: replace it."
    )
