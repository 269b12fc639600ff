"""Further training of the head with calibration errors in its loss, which showed no gain.

settings = Settings(head=CalibratedTraining(ece_weight=1.0))
AttnKNNClassifier(settings=settings)
"""

from pydantic import Field
from torch import Tensor

from nearwise.nn import HeadOutput
from nearwise.training import HeadConfig, HeadRows
from nearwise_lab.nn.calibration_losses import brier_loss, soft_binned_ece


class CalibratedTraining(HeadConfig):
    """Settings of a head's further training, with calibration terms.

    Parameters
    ----------
    ece_weight, brier_weight : float, default=0.0
        Weights of the soft-binned calibration error and of the Brier score of the pooled
        prediction, beside its NLL.
    ece_bins : int, default=15
    ece_width : float, default=0.01
        Softness of the bins; see `soft_binned_ece`.
    """

    ece_weight: float = Field(0.0, ge=0)
    brier_weight: float = Field(0.0, ge=0)
    ece_bins: int = Field(15, ge=1)
    ece_width: float = Field(0.01, gt=0)

    def loss(self, output: HeadOutput, rows: HeadRows) -> Tensor:
        """Return the loss of `HeadConfig` and calibration terms, all of the given labels."""
        loss = super().loss(output, rows)
        log_proba = rows.given_log_proba(output.log_proba)
        given = (log_proba, rows.labels, rows.weight)
        if self.ece_weight:
            error = soft_binned_ece(*given, n_bins=self.ece_bins, width=self.ece_width)
            loss = loss + self.ece_weight * error
        if self.brier_weight:
            loss = loss + self.brier_weight * brier_loss(*given)
        return loss
