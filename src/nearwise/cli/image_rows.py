"""Images as the rows that a command is given."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from nearwise.estimators import AttnKNNClassifier

Shape = tuple[int, int, int]


def image_size(model: "AttnKNNClassifier") -> Shape | None:
    """Height, width and channels of the images that a model was fitted on; None for a table."""
    from nearwise.estimators.images import ImageEncoder

    encoder = model._state.encoder
    if not isinstance(encoder, ImageEncoder):
        return None
    return encoder.height, encoder.width, encoder.channels


def read_image_rows(
    data: str, keep: Sequence[str], size: Shape, *, resize: bool
) -> "tuple[pd.DataFrame, np.ndarray]":
    """Read an image, or a folder of them.

    Parameters
    ----------
    data : str
        Path of a file or a folder.
    keep : sequence of str
        Must be empty: images have no columns.
    size : (int, int, int)
        Height, width and channels that the model knows.
    resize : bool
        Whether images of another size are brought to this one.

    Returns
    -------
    kept : DataFrame with the column "file"
    images : uint8 ndarray of shape (n, height, width, channels)

    Raises
    ------
    ValueError
        If a column is asked for, the size differs, or an image is damaged.
    """
    import pandas as pd

    from nearwise.data import read_images
    from nearwise.data.images.folder import image_files

    if keep:
        raise ValueError(f"--keep {keep[0]}: images have no columns; their file is always named.")
    if not Path(data).exists():
        raise ValueError(f"There is no file or folder {data}. Give an image, or a folder of them.")
    files = image_files(Path(data))
    images = read_images(
        files, image_size=size[:2] if resize else None, color="rgb" if size[2] == 3 else "grey"
    )
    if images.shape[1:3] != size[:2]:
        raise ValueError(
            f"{files[0]} is {images.shape[1]} x {images.shape[2]}, the model was fitted on "
            f"{size[0]} x {size[1]} (height, width). Add --resize to bring images to that size."
        )
    return pd.DataFrame({"file": [str(file) for file in files]}), images
