"""Photographs: images as features of a pretrained network, and then as rows of a table."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from nearwise.estimators.inputs.images import EncodedImages, ImageEncoder
from nearwise.estimators.inputs.shared_work import once
from nearwise.estimators.inputs.table import Encoded
from nearwise.estimators.model.memory_views import EMBEDDED
from nearwise.estimators.model.row_models import KeyedRows, RowModels, TableModels
from nearwise.functional.threads import own_threads
from nearwise.nn.lite0 import EfficientNetLite0
from nearwise.progress_bar import late_bar

_SHOW_FROM = 200  # fewer images need no progress bar


@dataclass
class PhotographModels(RowModels):
    """Row models of photographs: a frozen network, then the row models of a table.

    Attributes
    ----------
    encoder : ImageEncoder
    backbone : EfficientNetLite0
        Network with weights of an installed package; never trained or saved.
    table : TableModels
        Row models of its features.
    """

    encoder: ImageEncoder
    backbone: EfficientNetLite0
    table: TableModels

    def __post_init__(self) -> None:
        self.embedding = self.table.embedding

    @property
    def networks(self) -> list[nn.Module]:
        """The frozen network, and the trained ones of the table."""
        return [self.backbone, *self.table.networks]

    @property
    def has_base(self) -> bool:
        """Whether there is a base of the features."""
        return self.table.has_base

    def __call__(self, rows: EncodedImages) -> KeyedRows:
        """Keys of images with their features as EMBEDDED, and log-probabilities of the base."""
        features = self.features(rows)
        found = self.table(self._in_table(features))
        return found._replace(keys=found.keys | {EMBEDDED: features})

    def feature_keys(self, rows: EncodedImages) -> Tensor:
        """Keys of images in the space "features" alone."""
        return self.table.feature_keys(self._in_table(self.features(rows)))

    def features(self, rows: EncodedImages) -> Tensor:
        """Features of images by the network, float32 (n, 1280)."""

        def work() -> Tensor:
            with late_bar("embedding images", len(rows), shown=len(rows) >= _SHOW_FROM) as report:
                return embed(self.backbone, self.encoder, rows, report)

        return once("features", (self.backbone, rows), work)

    def _in_table(self, features: Tensor) -> Encoded:
        return self.table.encoder.transform(features.double().numpy())


@own_threads()
def embed(
    backbone: EfficientNetLite0,
    encoder: ImageEncoder,
    rows: EncodedImages,
    report: Callable[[int], None],
) -> Tensor:
    """Features of images, float32 (n, 1280); `report` gets the number of images done so far."""
    return backbone.features(encoder.network_inputs(rows)[0], report)
