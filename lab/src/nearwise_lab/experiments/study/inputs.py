"""A data set as input of the study's networks: split, resized, as tensors."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nearwise.data import Dataset, split_dataset
from nearwise.training.augment import crop_and_flip
from nearwise_lab.experiments.preprocess import FeatureEncoder
from nearwise_lab.experiments.study.presets import StudyPreset, Views
from nearwise_lab.experiments.trial import TEST_SIZE
from nearwise_lab.training.augment import FullAugmentation

MAX_HELD_OUT = 5000
N_VIEWS = 4
_PADDING, _SIDE = 4, 32  # 4 pixels of 32; smaller images are moved by as much of their side


@dataclass(frozen=True)
class StudyInputs:
    """Training and test rows of one split.

    Attributes
    ----------
    seed : int
        The run's seed (of batches, starting weights and noise).
    x_train, x_test : Tensor
        uint8 images (n, c, h, w), or float32 columns (n, F): standardised on the training rows,
        categories one-hot.
    y_train, y_test : int64 Tensor of shape (n,)
        Class positions in `classes`, which are sorted; those of the training rows may be noisy.
    train_index, test_index : int64 ndarray of shape (n,)
        Row positions in the data set.
    held_out : bool Tensor of shape (n_train,)
        Training rows that the parametric upper bound does not train on.
    """

    dataset: Dataset
    seed: int
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    train_index: np.ndarray
    test_index: np.ndarray
    held_out: Tensor
    classes: np.ndarray

    @property
    def n_classes(self) -> int:
        """Number of classes of the whole data set."""
        return len(self.classes)

    @property
    def is_images(self) -> bool:
        """Whether the rows are images."""
        return self.x_train.ndim == 4

    @property
    def sizes(self) -> dict[str, Any]:
        """Sizes as fields of a record."""
        n_train, n_test = len(self.y_train), len(self.y_test)
        return {"n_train": n_train, "n_test": n_test, "n_classes": self.n_classes}

    @property
    def X_train(self) -> Any:
        """Training rows as `AttnKNNClassifier` takes them: images are uint8 (n, h, w, c)."""
        return as_images(self.x_train) if self.is_images else self.dataset.rows(self.train_index)[0]

    @property
    def X_test(self) -> Any:
        """Test rows as `AttnKNNClassifier` takes them."""
        return as_images(self.x_test) if self.is_images else self.dataset.rows(self.test_index)[0]

    @cached_property
    def digest(self) -> str:
        """Hash of rows and labels; two runs of one digest see the same data."""
        digest = hashlib.sha256()
        for tensor in (self.x_train, self.y_train, self.x_test, self.y_test, self.held_out):
            digest.update(str((tuple(tensor.shape), tensor.dtype)).encode())
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def with_labels(self, labels: np.ndarray) -> "StudyInputs":
        """Return the same rows with other training labels, in the data set's form."""
        return replace(self, y_train=torch.from_numpy(np.searchsorted(self.classes, labels)))

    def take(self, rows: np.ndarray) -> "StudyInputs":
        """Return these training rows only (positions in the training part), and all test rows."""
        kept = torch.from_numpy(rows)
        return replace(
            self,
            x_train=self.x_train[kept],
            y_train=self.y_train[kept],
            train_index=self.train_index[rows],
            held_out=self.held_out[kept],
        )

    @property
    def given_labels(self) -> np.ndarray:
        """Training labels in the data set's form."""
        return self.classes[self.y_train.numpy()]


def make_inputs(dataset: Dataset, preset: StudyPreset, seed: int) -> StudyInputs:
    """Split a data set by the preset and turn it into tensors.

    `seed` is that of the split where `preset.split_seed` is None, and of the rows that a cap keeps.
    """
    split_seed = seed if preset.split_seed is None else preset.split_seed
    train, test = split_dataset(dataset, split_seed, TEST_SIZE)
    train = stratified_part(dataset.y, train, preset.max_rows, split_seed)
    test = stratified_part(dataset.y, test, preset.max_test_rows, split_seed)
    y_train, y_test = (
        torch.from_numpy(np.searchsorted(dataset.classes, dataset.y[rows]))
        for rows in (train, test)
    )
    n_held_out = min(MAX_HELD_OUT, max(1, round(preset.held_out * len(train))))
    held_out = np.isin(train, stratified_part(dataset.y, train, n_held_out, split_seed))
    parts = dataset.rows(train)[0], dataset.rows(test)[0]
    if dataset.kind == "images":
        x_train, x_test = (_image_tensor(np.asarray(part), preset) for part in parts)
    else:
        encoder = FeatureEncoder("columns" if dataset.kind == "table" else "overall").fit(parts[0])
        x_train, x_test = (torch.from_numpy(encoder.transform(part)).float() for part in parts)
    return StudyInputs(
        dataset, seed, x_train, y_train, x_test, y_test, train, test, torch.from_numpy(held_out),
        dataset.classes,
    )  # fmt: skip


def stratified_part(y: np.ndarray, rows: np.ndarray, n_wanted: int | None, seed: int) -> np.ndarray:
    """Return `n_wanted` of the row positions `rows`, classes in about their shares, ascending.

    The classes are dealt out in turn: after shuffling, a row's position within its class over
    the class's size decides how early it is taken.
    """
    if n_wanted is None or n_wanted >= len(rows):
        return rows
    order = np.random.default_rng(seed).permutation(len(rows))
    labels = np.unique(y[rows[order]], return_inverse=True)[1]
    place = np.empty(len(rows))
    for label in range(int(labels.max()) + 1):
        mine = np.flatnonzero(labels == label)
        place[mine] = (np.arange(len(mine)) + 0.5) / len(mine)
    return np.sort(rows[order[np.argsort(place, kind="stable")[:n_wanted]]])


def _image_tensor(images: np.ndarray, preset: StudyPreset) -> Tensor:
    """Images (n, h, w, c) as uint8 (n, c, h, w), resized and repeated by the preset."""
    tensor = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2)
    size = preset.image_size
    if size is not None and tuple(tensor.shape[2:]) != (size, size):
        bilinear: Any = {"mode": "bilinear", "align_corners": False, "antialias": True}
        parts = (F.interpolate(p.float(), (size, size), **bilinear) for p in tensor.split(4096))
        tensor = torch.cat([part.round().clamp(0, 255).to(torch.uint8) for part in parts])
    if preset.channels == 3 and tensor.shape[1] == 1:
        tensor = tensor.expand(-1, 3, -1, -1)
    return tensor.contiguous()


def as_images(tensor: Tensor) -> np.ndarray:
    """Images (n, c, h, w) as arrays of shape (n, h, w, c)."""
    return tensor.permute(0, 2, 3, 1).contiguous().numpy()


def study_augmentation(inputs: StudyInputs) -> FullAugmentation | None:
    """Return the study's training augmentation: rotation of digits, crops and colors of others.

    None for columns.
    """
    if not inputs.is_images:
        return None
    if inputs.dataset.name in ("mnist", "digits-images"):
        return FullAugmentation.model_validate({"rotation": 10})
    padding = _padding(inputs.x_train)
    changes = {"crop_padding": padding, "flip": True, "color_jitter": 0.2}
    return FullAugmentation.model_validate(changes)


def study_views(images: Tensor, seed: int, kind: Views) -> list[Tensor]:
    """Return four further views of uint8 images (n, c, h, w).

    `seed` decides where each image is cropped and whether it is mirrored; `kind` is as in
    `StudyPreset`.
    """
    generator = torch.Generator().manual_seed(seed)
    padding, n = _padding(images), len(images)
    views = [images.flip(3)] if kind == "mirror-and-crops" else []
    mirrored = torch.zeros(n, dtype=torch.bool)
    while len(views) < N_VIEWS:
        top, left = torch.randint(2 * padding + 1, (2, n), generator=generator)
        if kind == "random":
            mirrored = torch.rand(n, generator=generator) < 0.5
        views.append(crop_and_flip(images, padding, top, left, mirrored))
    return views


def _padding(images: Tensor) -> int:
    return max(1, round(_PADDING * images.shape[2] / _SIDE))
