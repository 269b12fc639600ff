"""Training of vision transformers with any attention layer, by the published flags."""

from nearwise_lab.experiments.vit.evaluate import evaluate_vit, load_vit_encoder
from nearwise_lab.experiments.vit.run import VitRun, train_vit
from nearwise_lab.experiments.vit.settings import VitSettings

__all__ = ["VitRun", "VitSettings", "evaluate_vit", "load_vit_encoder", "train_vit"]
