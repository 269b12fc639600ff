"""Training of vision transformers with any attention layer, by the published flags."""

from nearwise.lab.experiments.vit.encoder import load_vit_encoder
from nearwise.lab.experiments.vit.evaluate import evaluate_vit
from nearwise.lab.experiments.vit.run import VitRun, train_vit
from nearwise.lab.experiments.vit.settings import VitSettings

__all__ = ["VitRun", "VitSettings", "evaluate_vit", "load_vit_encoder", "train_vit"]
