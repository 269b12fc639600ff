"""One training step of a neural field: visible pixels, decoded pixels, and the losses."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearwise.data.contexts import Context
from nearwise_lab.field_training.config import FieldConfig
from nearwise_lab.field_training.views import dense_info_nce, random_warps
from nearwise_lab.nn.field import PerceiverAutoencoder, coordinate_grid


class SecondView(NamedTuple):
    """Input of the contrastive term for a batch.

    Attributes
    ----------
    images : Tensor of shape (B, C, H, W)
    shown : int64 Tensor of shape (B, n) or None
        Pixels of the view that are shown.
    anchors, places : Tensor of shape (B, A, 2)
        Positions in the image, and where they come to lie in the view.
    others : Tensor of shape (B, C, 2)
        Positions in the view.
    """

    images: Tensor
    shown: Tensor | None
    anchors: Tensor
    places: Tensor
    others: Tensor


class FieldLearner(nn.Module):
    """A neural field with the head that its contrastive term needs; a call returns the losses.

    `seed` decides the head's first weights, and the pixels that are shown and queried.
    """

    def __init__(self, model: PerceiverAutoencoder, config: FieldConfig, seed: int) -> None:
        super().__init__()
        self.model, self.config, self.seed = model, config, seed
        self.sigma = config.sigma(model.config.image_size)
        self.head: nn.Linear | None = None
        if config.has_nce:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                self.head = nn.Linear(2 * model.config.fourier_features, config.nce_dim)

    def forward(
        self,
        images: Tensor,
        shown: Tensor | None = None,
        queried: Tensor | None = None,
        second: SecondView | None = None,
    ) -> dict[str, Tensor]:
        """Return the losses of a batch.

        Parameters
        ----------
        images : Tensor of shape (B, C, H, W)
            In [0, 1].
        shown, queried : int64 Tensor of shape (B, n), (B, Q), optional
            Pixels to encode, and to decode; default all.
        second : SecondView, optional

        Returns
        -------
        losses : dict of str to scalar Tensor
            "mse" over the pixels that count, in the squared unit of the images; with a second
            view "nce".
        """
        batch = [images] if second is None else [images, second.images]
        contexts = None
        if shown is not None:
            hidden = [shown] if second is None else [shown, second.shown]
            contexts = torch.cat([part for part in hidden if part is not None])
        tokens = self.model.encode_points(*self.model._points(torch.cat(batch), contexts))
        first, *rest = tokens.chunk(len(batch))
        losses = {"mse": self._reconstruction(first, images, shown, queried)}
        if second is not None:
            losses["nce"] = self._contrast(first, rest[0], second)
        return losses

    def _reconstruction(
        self, tokens: Tensor, images: Tensor, shown: Tensor | None, queried: Tensor | None
    ) -> Tensor:
        grid = coordinate_grid(images.shape[2], images.shape[3], device=images.device)
        values = images.flatten(2).transpose(1, 2)
        if queried is not None:
            grid = grid[queried]
            values = values.gather(1, queried[..., None].expand(-1, -1, values.shape[2]))
        decoded = self.model.pixels(self.model.features(tokens, grid))
        errors = (decoded.float() - values.float()).square().mean(-1)
        if shown is None or self.config.loss_on == "all":
            return errors.mean()
        n_pixels = images.shape[2] * images.shape[3]
        counts = torch.ones(len(images), n_pixels, device=images.device).scatter(1, shown, 0.0)
        counts = counts if queried is None else counts.gather(1, queried)
        return (errors * counts).sum() / counts.sum().clamp_min(1)

    def _contrast(self, first: Tensor, other: Tensor, second: SecondView) -> Tensor:
        assert self.head is not None  # made with the contrastive objectives
        anchors, candidates = (
            F.normalize(self.head(self.model.features(tokens, coords)).float(), dim=-1)
            for tokens, coords in ((first, second.anchors), (other, second.others))
        )
        return dense_info_nce(anchors, candidates, second.places, second.others, sigma=self.sigma)

    def shown(self, rows: Tensor, draw: int) -> Tensor | None:
        """Visible pixels (B, n) of images under a sparse objective; None is all."""
        if not self.config.is_sparse:
            return None
        if self.config.layout == "fixed":  # in every step and stage, the one that probes show
            return Context("fixed", self.config.context).indices(self._n_pixels, rows)
        context = Context("per-image", self.config.context, self.seed)
        return context.indices(self._n_pixels, rows, draw)

    def queried(self, rows: Tensor, draw: int) -> Tensor | None:
        """Return the decoded pixels (B, Q) of some images; None is all."""
        wanted, n_pixels = self.config.n_queries, self._n_pixels
        if wanted is None or wanted >= n_pixels:
            return None
        # another seed than that of the shown pixels: which are queried must not depend on these
        context = Context("per-image", wanted / n_pixels, self.seed + 1_000_003)
        return context.indices(n_pixels, rows, draw)

    def second_view(
        self, images: Tensor, shown: Tensor | None, generator: torch.Generator
    ) -> SecondView:
        """Draw a view of each image and the positions to match."""
        config, n = self.config, len(images)
        warp = random_warps(n, generator)
        n_places = config.n_anchors + config.n_candidates
        drawn = 2 * torch.rand(n, n_places, 2, generator=generator) - 1
        warp, drawn = warp.to(images.device), drawn.to(images.device)
        anchors, others = drawn.split([config.n_anchors, config.n_candidates], dim=1)
        return SecondView(warp.images(images), shown, anchors, warp.points(anchors), others)

    @property
    def _n_pixels(self) -> int:
        height, width = self.model.config.image_size
        return height * width
