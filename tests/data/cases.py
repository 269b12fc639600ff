"""Small image files in every form that is read."""

import gzip
import io
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def pixels(n: int, shape: tuple[int, ...] = (32, 32, 3), seed: int = 0) -> np.ndarray:
    """Random images."""
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def encode(image: np.ndarray, form: str = "PNG", **options) -> bytes:
    """Encode one image of shape (h, w), (h, w, 1) or (h, w, c)."""
    stream = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[2:] == (1,) else image).save(
        stream, form, **options
    )
    return stream.getvalue()


def scratched(image: np.ndarray) -> bytes:
    """Encode an image as PNG and change some bytes of its pixels."""
    content = encode(image)
    return content[:60] + bytes(40) + content[100:]


def write_shard(
    path: Path, images, labels, *, image: str = "img", label: str = "label", form: str = "PNG"
) -> None:
    """Write Parquet as `datasets` does, from arrays or bytes; labels are repeated as needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"lossless": True} if form == "WEBP" else {}
    contents = [one if isinstance(one, bytes) else encode(one, form, **options) for one in images]
    table = pa.table(
        {
            image: [{"bytes": content, "path": None} for content in contents],
            label: np.resize(list(labels), len(images)),
        }
    )
    pq.write_table(table, path, row_group_size=4)


def idx_bytes(values: np.ndarray) -> bytes:
    """Give the bytes of an idx file."""
    header = struct.pack(f">I{values.ndim}I", 0x0800 + values.ndim, *values.shape)
    return header + values.astype(np.uint8).tobytes()


def write_mnist(folder: Path, n_train: int, n_test: int) -> None:
    """Write the four files of MNIST with random images and labels 0, 1, 2, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    for stem, n in (("train", n_train), ("t10k", n_test)):
        images = idx_bytes(pixels(n, (28, 28), seed=n))
        (folder / f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        labels = idx_bytes(np.arange(n) % 10)
        (folder / f"{stem}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
