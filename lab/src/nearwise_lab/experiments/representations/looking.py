"""What is measured and kept of encoders beside probes: geometry, maps, reconstructions."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nearwise.data.contexts import Context
from nearwise.data.images.pixels import as_images, as_unit_floats
from nearwise.probes import Encoder, extract_features
from nearwise_lab.experiments.fields import FieldRun
from nearwise_lab.experiments.representations.arms import arm_of
from nearwise_lab.experiments.representations.settings import StudyConfig
from nearwise_lab.experiments.side_by_side import Progress
from nearwise_lab.field_training.run import reconstruction_errors
from nearwise_lab.geometry.describe import describe_geometry
from nearwise_lab.geometry.directions import alignment, cka
from nearwise_lab.geometry.neighborhoods import neighbor_overlap, trustworthiness
from nearwise_lab.probing.data import LabeledImages, ProbeData

_NEIGHBORS = 20
_TRUST = 12
_PERPLEXITY = 30.0
FEWEST_ROWS = 25
"""Test images that geometry and maps take: over twice the neighbors that trust counts."""
Features = NDArray[np.float32]


class Looker:
    """Measures the test features of every encoder of one seed.

    Parameters
    ----------
    data : ProbeData
    config : StudyConfig
    device : str
    cache : Path
        Folder of extracted features, the probes' own.
    """

    def __init__(self, data: ProbeData, config: StudyConfig, device: str, cache: Path) -> None:
        self.test, self.config, self.device, self.cache = data.test, config, device, cache
        self.codes = np.unique(data.test.labels, return_inverse=True)[1].astype(np.int64)

    def features(self, name: str, encoder: Encoder, context: str, draw: int = 0) -> Features:
        """Pooled features of the test images."""
        found = extract_features(
            encoder,
            self.test.images,
            self.test.labels,
            rows=self.test.rows,
            pool=arm_of(name).pool,
            context=context,
            draw=draw,
            batch_size=self.config.batch_size,
            device=self.device,
            precision=self.config.precision,
            cache=self.cache,
            progress=False,
        )
        return found.X

    def geometry(self, encoders: Mapping[str, Encoder], seed: int) -> list[dict[str, Any]]:
        """Measure every encoder in every context, alone and beside the others."""
        rows = _sample(len(self.codes), self.config.geometry_rows)
        measured = []
        for context in self.config.contexts:
            features = {n: self.features(n, e, context)[rows] for n, e in encoders.items()}
            for name, X in features.items():
                row = {"encoder": name, "context": context, "seed": seed, "draw": 0}
                lit = X.any(axis=1)  # pixels of which only black ones are seen have no direction
                row |= describe_geometry(X[lit], self.codes[rows][lit], n_neighbors=_NEIGHBORS)
                if context != "full":
                    other = self.features(name, encoders[name], context, draw=1)[rows]
                    both = lit & other.any(axis=1)
                    row["view_alignment"] = alignment(X[both], other[both])
                row["cka"] = {n: cka(X, Y) for n, Y in features.items()}
                row["overlap"] = {
                    n: neighbor_overlap(X, Y, _NEIGHBORS) for n, Y in features.items()
                }
                measured.append(row)
        return measured

    def maps(
        self, encoders: Mapping[str, Encoder], seed: int, progress: Progress
    ) -> list[dict[str, Any]]:
        """Lay the features out in the plane, in both ways, with how far they can be trusted."""
        rows = _sample(len(self.codes), self.config.map_rows)
        drawn = []
        for context in self.config.contexts:
            for name, encoder in encoders.items():
                progress(f"seed {seed}, map of {name}, {context}")
                X = self.features(name, encoder, context)[rows]
                for way, points in (("tsne", tsne_map(X, seed)), ("pca", pca_map(X))):
                    drawn.append(
                        {
                            "encoder": name,
                            "context": context,
                            "seed": seed,
                            "way": way,
                            "points": points,
                            "labels": self.codes[rows],
                            "trustworthiness": trustworthiness(X, points, _TRUST),
                        }
                    )
        return drawn

    def errors(self, field: FieldRun) -> dict[str, dict[str, float | None]]:
        """Reconstruction errors on the test images, by context."""
        images = as_images(self.test.images)
        model = field.model.to(self.device)
        found: dict[str, dict[str, float | None]] = {}
        for text in self.config.contexts:
            seen = Context.parse(text)
            errors = reconstruction_errors(model, images, seen)
            if seen.kind == "full":
                found[text] = {"psnr": errors["psnr"], "psnr_hidden": None}
            else:
                hidden = -10 * math.log10(max(errors["hidden_mse"], 1e-12))
                found[text] = {"psnr": errors["sparse_psnr"], "psnr_hidden": hidden}
        return found

    @torch.no_grad()
    def pictures(self, fields: Mapping[str, FieldRun], seed: int) -> dict[str, Any]:
        """Reconstruct the first test images from every context."""
        first = LabeledImages(*(part[: self.config.shown] for part in self._parts()))
        x = as_unit_floats(as_images(first.images))
        numbers = torch.as_tensor(np.asarray(first.rows))
        n_points = x.shape[2] * x.shape[3]
        made: dict[str, Any] = {}
        for text in self.config.contexts:
            shown = Context.parse(text).indices(n_points, numbers, 0)
            made[text] = {"fields": {}}
            if shown is not None:
                mask = torch.zeros(len(x), n_points).scatter(1, shown, 1.0)
                made[text]["seen"] = (x * mask.view(len(x), 1, *x.shape[2:])).numpy()
            for name, field in fields.items():
                model = field.model.to(self.device)
                context = None if shown is None else shown.to(self.device)
                again = model.reconstruct(x.to(self.device), context).float().cpu()
                made[text]["fields"][name] = again.clamp(0, 1).numpy()
        return {"seed": seed, "originals": x.numpy(), "contexts": made}

    def _parts(self) -> tuple[Any, ...]:
        return self.test.images, self.test.labels, self.test.rows


def tsne_map(X: Features, seed: int = 0) -> NDArray[np.float32]:
    """Lay rows out in the plane by t-SNE, from their principal components.

    Parameters
    ----------
    X : ndarray of shape (n, D)
        At least 4 rows.
    seed : int, default=0
        The same seed gives the same map, on one machine.

    Returns
    -------
    points : float32 ndarray of shape (n, 2)

    References
    ----------
    van der Maaten and Hinton, "Visualizing Data using t-SNE", JMLR 2008; scikit-learn's.
    """
    from sklearn.manifold import TSNE

    perplexity = min(_PERPLEXITY, (len(X) - 1) / 3)
    made = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(_scaled(X))
    points: NDArray[np.float32] = made.astype(np.float32)
    return points


def pca_map(X: Features) -> NDArray[np.float32]:
    """Lay rows out by their first two principal components, whose signs are fixed."""
    from sklearn.decomposition import PCA

    made = PCA(2, svd_solver="full").fit_transform(_scaled(X))
    points: NDArray[np.float32] = made.astype(np.float32)
    return points


def _scaled(X: Features) -> NDArray[np.float64]:
    """Bring the total variance to 1: maps do not hang on the unit of the features."""
    centered = X.astype(np.float64) - X.mean(axis=0, dtype=np.float64)
    size = float(np.sqrt((centered**2).sum() / len(X)))
    return centered / size if size > 0 else centered


def _sample(n: int, most: int) -> NDArray[np.int64]:
    """Rows measured: all, or the same random ones each time."""
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).permutation(n)[:most])


def reconstructed(fields: Mapping[str, FieldRun], looker: Looker, seed: int) -> Sequence[dict]:
    """Give what is kept of every field: errors, learning curve, seconds."""
    return [
        {
            "encoder": name,
            "seed": seed,
            "errors": looker.errors(field),
            "history": field.history,
            "seconds": field.seconds,
        }
        for name, field in fields.items()
    ]
