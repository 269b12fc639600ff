"""Measurements of encoders besides probes: geometry, maps, reconstructions."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nearwise.data.contexts import Context
from nearwise.data.images.pixels import as_images, as_unit_floats
from nearwise.probes import Encoder, extract_features
from nearwise_lab.experiments.fields import FieldRun
from nearwise_lab.experiments.representations.settings import arm_of
from nearwise_lab.experiments.representations.study import Study
from nearwise_lab.field_training.run import reconstruction_errors
from nearwise_lab.geometry import purity_curve

_NEIGHBORS = 20
_CURVE = (1, 2, 5, 10, 20, 50, 100, 200)  # those above the rows left are left out
_TRUST = 12
_PERPLEXITY = 30.0
FEWEST_ROWS = 25
"""Test images that geometry and maps take: over twice the neighbors that trust counts."""
Features = NDArray[np.float32]
Arrays = dict[str, NDArray[Any]]


def _features(
    study: Study, encoders: Mapping[str, Encoder], context: str, rows: NDArray[np.int64]
) -> dict[str, Features]:
    """Pooled features of some test images by every encoder."""
    test, config = study.data.test, study.config
    return {
        name: extract_features(
            encoder,
            test.images,
            test.labels,
            rows=test.rows,
            pool=arm_of(name).pool,
            context=context,
            batch_size=config.batch_size,
            device=study.device,
            precision=config.precision,
            cache=study.cache,
            progress=False,
        ).X[rows]
        for name, encoder in encoders.items()
    }


def _sample(study: Study, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Test rows to measure (all or a fixed random sample), and their classes."""
    labels = study.data.test.labels
    rows = np.sort(np.random.default_rng(0).permutation(len(labels))[:most])
    return rows, np.unique(labels, return_inverse=True)[1][rows].astype(np.int64)


def geometry(study: Study, encoders: Mapping[str, Encoder], seed: int) -> list[dict[str, Any]]:
    """Measure the neighborhoods of every encoder in every context."""
    from sklearn.metrics import silhouette_score

    rows, codes = _sample(study, study.config.geometry_rows)
    measured = []
    for context in study.config.contexts:
        for name, X in _features(study, encoders, context, rows).items():
            lit = X.any(axis=1)  # pixels of which only black ones are seen have no direction
            sizes = [k for k in _CURVE if k < lit.sum()]
            purities = purity_curve(X[lit], codes[lit], sizes).tolist()
            curve = dict(zip(sizes, purities, strict=True))
            measured.append(
                {
                    "encoder": name,
                    "context": context,
                    "seed": seed,
                    "draw": 0,
                    "n": int(lit.sum()),
                    "purity": curve.get(_NEIGHBORS),
                    "purity_curve": curve,
                    "silhouette": silhouette_score(X[lit], codes[lit], metric="cosine"),
                }
            )
    return measured


def maps(
    study: Study, encoders: Mapping[str, Encoder], seed: int
) -> tuple[list[dict[str, Any]], Arrays]:
    """Map the features to two dimensions, with the trustworthiness of each map."""
    from sklearn.manifold import trustworthiness

    rows, codes = _sample(study, study.config.map_rows)
    drawn: list[dict[str, Any]] = []
    arrays: Arrays = {}
    for context in study.config.contexts:
        for name, X in _features(study, encoders, context, rows).items():
            study.progress(f"seed {seed}, map of {name}, {context}")
            points = tsne_map(X, seed)
            arrays |= {f"map{len(drawn)}": points, f"map{len(drawn)}_labels": codes}
            place = {"encoder": name, "context": context, "seed": seed, "way": "tsne"}
            drawn.append(
                place | {"trustworthiness": trustworthiness(X, points, n_neighbors=_TRUST)}
            )
    return drawn, arrays


def errors(study: Study, field: FieldRun) -> dict[str, dict[str, float | None]]:
    """Reconstruction errors of a field on the test images, by context."""
    images, model = as_images(study.data.test.images), field.model.to(study.device)
    found: dict[str, dict[str, float | None]] = {}
    for text in study.config.contexts:
        seen = Context.parse(text)
        measured = reconstruction_errors(model, images, seen)
        if seen.kind == "full":
            found[text] = {"psnr": measured["psnr"], "psnr_hidden": None}
        else:
            hidden = -10 * math.log10(max(measured["hidden_mse"], 1e-12))
            found[text] = {"psnr": measured["sparse_psnr"], "psnr_hidden": hidden}
    return found


@torch.no_grad()
def pictures(
    study: Study, fields: Mapping[str, FieldRun], seed: int
) -> tuple[dict[str, Any], Arrays]:
    """Reconstruct the first test images from every context."""
    images, _, rows = (part[: study.config.shown] for part in study.data.test)
    x = as_unit_floats(as_images(images))
    n_points = x.shape[2] * x.shape[3]
    arrays: Arrays = {"originals": x.numpy()}
    for text in study.config.contexts:
        shown = Context.parse(text).indices(n_points, torch.as_tensor(rows), 0)
        if shown is not None:
            mask = torch.zeros(len(x), n_points).scatter(1, shown, 1.0)
            arrays[f"seen {text}"] = (x * mask.view(len(x), 1, *x.shape[2:])).numpy()
        for name, field in fields.items():
            context = None if shown is None else shown.to(study.device)
            made = field.model.to(study.device).reconstruct(x.to(study.device), context)
            arrays[f"field {text} {name}"] = made.float().cpu().clamp(0, 1).numpy()
    return {"seed": seed, "contexts": {c: list(fields) for c in study.config.contexts}}, arrays


def tsne_map(X: Features, seed: int = 0) -> NDArray[np.float32]:
    """Map rows to two dimensions by scikit-learn's t-SNE of their principal components."""
    from sklearn.manifold import TSNE

    # a total variance of 1: maps do not hang on the unit of the features
    centered = X.astype(np.float64) - X.mean(axis=0, dtype=np.float64)
    size = float(np.sqrt((centered**2).sum() / len(X)))
    perplexity = min(_PERPLEXITY, (len(X) - 1) / 3)
    made = TSNE(perplexity=perplexity, init="pca", random_state=seed)
    points: NDArray[np.float32] = made.fit_transform(centered / (size or 1.0)).astype(np.float32)
    return points
