"""Digests of the images that a model was trained on, saved in the model's folder."""

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearwise.data.images.pixels import as_images
from nearwise.safe_files import write_whole

Digests = NDArray[np.uint64]
TRAINED_ON = "trained_on.npy"


def image_digests(images: Any) -> Digests:
    """Hash each image, by its pixels alone.

    Returns `digests`, uint64 ndarray of shape (n,): the first 8 bytes of SHA-256.

    Parameters
    ----------
    images : array of shape (n, height, width), (n, height, width, channels) or
        (n, channels, height, width)
    """
    pixels = as_images(images)
    shape = str(tuple(pixels.shape[1:])).encode()
    found = [
        hashlib.sha256(shape + image.contiguous().numpy().tobytes()).digest()[:8]
        for image in pixels
    ]
    return np.frombuffer(b"".join(found), dtype="<u8").astype(np.uint64)


def keep_digests(folder: str | os.PathLike[str], images: Any) -> None:
    """Save digests of the training images in a model's folder."""
    buffer = io.BytesIO()
    np.save(buffer, np.unique(image_digests(images)))
    write_whole(Path(folder) / TRAINED_ON, buffer.getvalue())


def kept_digests(folder: str | os.PathLike[str]) -> Digests | None:
    """Load the digests saved by `keep_digests`; None if there are none."""
    path = Path(folder) / TRAINED_ON
    if not path.is_file():
        return None
    digests: Digests = np.load(path, allow_pickle=False)
    return digests
