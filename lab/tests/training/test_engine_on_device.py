"""Training of image classifiers on an accelerator, as far as a CPU can tell."""

import pytest

from tests.reference.strict_program import run_program

_PROGRAM = """
import sys
import torch
from nearwise_lab.nn import VisionTransformer
from nearwise_lab.training.runs import RunConfig, RunLoss
from nearwise.training import train_epochs
from nearwise_lab.experiments.vit.data import ImageTensor
from nearwise_lab.experiments.vit.learner import SupervisedImages
from nearwise_lab.experiments.vit.settings import VitSettings
from nearwise_lab.nn.pixel_scale import PixelScale
from tests.reference.strict_device import NAME, strict_device

pixels = torch.randint(256, (48, 3, 8, 8), generator=torch.Generator().manual_seed(0))
images = ImageTensor(pixels.to(torch.uint8), torch.arange(48) % 4)
settings = VitSettings(
    augment=True, cutout=2, rotation=10, color_jitter=0.1, mixup=0.4, label_smoothing=0.1
)

def flow(device, folder):
    model = VisionTransformer(
        image_size=16, patch_size=4, n_classes=4, dim=12, depth=2, num_heads=2, mlp_dim=12,
        layer="MultiHeadAttention", random_state=0,
    )
    rows = images.to(torch.device(device))
    parts = SupervisedImages(model, rows, PixelScale((0.5,) * 3, (0.3,) * 3, 16), 4, settings)
    def go(epochs):
        config = RunConfig(epochs=3, batch_size=20, ema_decay=0.5, schedule="plateau")
        def stop(record):
            if record["epoch"] == epochs:
                raise KeyboardInterrupt
        evaluate = lambda epoch: parts.evaluate(rows)
        objective = RunLoss(model, parts.batch_loss, 48, evaluate, config)
        return train_epochs(
            objective, config, seed=0, device=device, monitor="loss", checkpoint=folder,
            progress=stop,
        )
    go(1)
    # From the first weights again: the checkpoint brings the rest.
    again = VisionTransformer(
        image_size=16, patch_size=4, n_classes=4, dim=12, depth=2, num_heads=2, mlp_dim=12,
        layer="MultiHeadAttention", random_state=0,
    )
    model.load_state_dict(again.to(device).state_dict())
    result = go(None)
    return [record["evaluation"]["loss"] for record in result.history]

plain = flow("cpu", sys.argv[1] + "/cpu")
with strict_device():
    there = flow(NAME, sys.argv[1] + "/there")
assert len(plain) == len(there) == 3
assert max(abs(a - b) for a, b in zip(plain, there)) < 1e-4, (plain, there)
"""


@pytest.mark.slow
def test_training_mixes_no_devices(tmp_path):
    run_program(_PROGRAM, tmp_path)
