"""Pictures to look at: local image files that are named by the texts shown with rows."""

import numpy as np

from nearwise.data.images.decode import Encoded, decode_images
from nearwise.shown import picture_file


def read_picture(show: str) -> np.ndarray | None:
    """Pixels, uint8 (height, width, channels), of the local image file that a text names.

    None if it names no local image, or the file is gone or cannot be read. A model from elsewhere
    may name any file. So only regular files that end and decode as images are read, within the
    limits of the decoder. URLs are never fetched. Relative paths start in the working directory of
    the process.
    """
    file = picture_file(show)
    if file is None:
        return None
    try:
        (pixels,) = decode_images([Encoded("the picture", file)], 1)
    except (ValueError, MemoryError):
        return None
    found: np.ndarray = pixels
    return found
