"""ProbeData: training, validation and test images with labels, and image digests."""

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from nearwise.data import Dataset, hold_out, split_dataset
from nearwise.data.images.pixels import as_images
from nearwise.probes.encoders import digest_of
from nearwise_lab.data.trained_on import image_digests


class LabeledImages(NamedTuple):
    """Images of one part.

    Attributes
    ----------
    images : uint8 or float array of shape (n, H, W, C), (n, C, H, W) or (n, H, W)
    labels : array of shape (n,)
    rows : int64 array of shape (n,)
        Number of each image in its data set; contexts are drawn from it.
    """

    images: Any
    labels: NDArray[Any]
    rows: NDArray[np.int64]


class ProbeData(NamedTuple):
    """Training, validation and test images of probes; the parts share no image."""

    train: LabeledImages
    validation: LabeledImages
    test: LabeledImages


def probe_data(
    dataset: Dataset,
    *,
    seed: int = 0,
    validation: int | float = 0.1,
    test_size: float = 0.3,
    limit: tuple[int, int] | None = None,
) -> ProbeData:
    """Divide a data set of images, or of ready embeddings, into the three parts.

    Parameters
    ----------
    dataset : Dataset
        Of kind "images" or "embeddings". Its official test part is the test part.
    seed : int, default=0
        Of the split.
    validation : int or float, default=0.1
        Rows, or share of the training rows, that choices are made on.
    test_size : float, default=0.3
        Share of the rows to test on, where there is no official test part.
    limit : (int, int), optional
        At most this many training (validation included) and test rows, drawn by `seed`.
    """
    train, test = split_dataset(dataset, seed, test_size)
    if limit is not None:
        generator = np.random.default_rng(seed)
        train, test = (
            np.sort(generator.permutation(part)[:most])
            for part, most in zip((train, test), limit, strict=True)
        )
    fitted, held = hold_out(dataset.y[train], validation, seed)
    X = dataset.X if isinstance(dataset.X, np.ndarray) else dataset.X.to_numpy()
    return ProbeData(
        *(
            LabeledImages(X[part], dataset.y[part], part)
            for part in (train[fitted], train[held], test)
        )
    )


def without_seen(data: ProbeData, encoders: Mapping[str, Any]) -> tuple[ProbeData, dict[str, int]]:
    """Leave out the test images that an encoder was trained on: they are not new ones to it.

    Parameters
    ----------
    data : ProbeData
    encoders : mapping of str to Encoder
        Those with an attribute ``trained_on`` name what they were trained on.

    Returns
    -------
    data : ProbeData
        With the test images that are new to all encoders.
    seen : dict of str to int
        Test images of `data` that an encoder was trained on, where there are any.

    Raises
    ------
    ValueError
        If no test image is left.
    """
    of = {name: getattr(encoder, "trained_on", None) for name, encoder in encoders.items()}
    known = {name: digests for name, digests in of.items() if digests is not None}
    if not known:
        return data, {}
    digests = image_digests(data.test.images)
    seen = {name: np.isin(digests, trained_on) for name, trained_on in known.items()}
    new = ~np.logical_or.reduce(list(seen.values()))
    if not new.any():
        raise ValueError(
            f"All {len(new)} test images are among those that {' and '.join(known)} was trained "
            "on. Give other images, or another split."
        )
    test = LabeledImages(*(part[new] for part in data.test))
    counts = {name: int(hit.sum()) for name, hit in seen.items() if hit.any()}
    return data._replace(test=test), counts


def digest_of_part(part: LabeledImages) -> str:
    """Hash of a part's images, labels and row numbers."""
    X = np.asarray(part.images)
    images = digest_of(torch.from_numpy(X) if X.ndim == 2 else as_images(part.images))
    text = f"{images}/{np.asarray(part.labels).tolist()}/{np.asarray(part.rows).tolist()}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
