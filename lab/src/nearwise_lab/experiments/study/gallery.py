"""Test images of a replay with the neighbors behind each, in the form of other galleries."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearwise_lab.experiments.study.neighbors import attention_weights, look_up
from nearwise_lab.experiments.study.replay import TrainedRun
from nearwise_lab.results.gallery import GALLERY_NEIGHBORS, choose_gallery_rows


def study_gallery(run: TrainedRun, proba: np.ndarray) -> dict[str, Any]:
    """Gather the surest mistakes and the least sure right answers of attention, with neighbors.

    Parameters
    ----------
    run : TrainedRun
        On images.
    proba : ndarray of shape (n_test, n_classes)
        Of attention over the test rows.

    Returns
    -------
    gallery : dict
        As `make_gallery`; `image_shape` is (h, w) or (h, w, 3) and rows are pixels 0..255.
    """
    inputs, classes = run.inputs, [str(c) for c in run.inputs.classes]
    chosen = choose_gallery_rows(inputs.y_test.numpy(), proba)
    positions = torch.tensor([i for i, _ in chosen], dtype=torch.int64)
    rows: list[dict[str, Any]] = []
    if chosen:
        found = look_up(
            run.model, inputs.x_test[positions], run.memory, run.preset.n_neighbors,
            run.preset.precision,
        )  # fmt: skip
        weights = attention_weights(run.model, found, run.memory).cpu()
        labels = run.memory.labels.cpu()
        indices, distances = found.indices.cpu(), found.distances.cpu().sqrt()
        for place, (position, why) in enumerate(chosen):
            order = torch.argsort(weights[place], descending=True, stable=True)
            nearest = [
                {
                    "id": int(indices[place, j]),
                    "label": classes[int(labels[indices[place, j]])],
                    "distance": float(distances[place, j]),
                    "weight": float(weights[place, j]),
                    "row": _pixels(inputs.x_train[indices[place, j]]),
                }
                for j in order[:GALLERY_NEIGHBORS].tolist()
            ]
            rows.append(
                {
                    "why": why,
                    "test_row": int(inputs.test_index[position]),
                    "true": classes[int(inputs.y_test[position])],
                    "predicted": classes[int(proba[position].argmax())],
                    "proba": proba[position].round(4),
                    "null_mass": 0.0,
                    "row": _pixels(inputs.x_test[position]),
                    "neighbors": nearest,
                }
            )
    channels, height, width = inputs.x_train.shape[1:]
    return {
        "kind": "images",
        "image_shape": [height, width] if channels == 1 else [height, width, channels],
        "columns": None,
        "classes": classes,
        "target_name": inputs.dataset.target_name,
        "rows": rows,
    }


def _pixels(image: Tensor) -> list[int]:
    flat: list[int] = image.permute(1, 2, 0).flatten().tolist()
    return flat
