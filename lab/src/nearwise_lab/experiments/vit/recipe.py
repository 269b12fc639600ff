"""What settings mean for the training loop and for the images."""

from typing import Any

from nearwise.training.settings import Precision
from nearwise_lab.experiments.vit.data import VitData, augmentation
from nearwise_lab.experiments.vit.learner import Recipe
from nearwise_lab.experiments.vit.settings import VitSettings
from nearwise_lab.training.runs import RunConfig


def engine_config(settings: VitSettings) -> RunConfig:
    """Give the settings of the training loop."""
    s = settings
    precision: Precision = s.amp_type if s.use_amp else "float32"
    values: dict[str, Any] = {
        "epochs": s.num_epochs,
        "batch_size": s.batch_size,
        "optimizer": s.optimizer,
        "lr": s.lr,
        "weight_decay": s.weight_decay,
        "decay_all": s.decay_all,
        "momentum": s.momentum,
        "schedule": "constant" if s.scheduler == "none" else s.scheduler,
        "warmup_epochs": s.warmup_epochs,
        "lr_step": s.lr_step,
        "lr_gamma": s.lr_gamma,
        "plateau_patience": s.plateau_patience,
        "gradient_clip": s.clip_grad_norm or None,
        "precision": precision,
        "compile": s.use_compiled,
        "compile_mode": s.compile_mode,
        "ema_decay": s.ema or None,
        "evaluate_every": s.evaluate_every,
        "checkpoint_every": s.checkpoint_every,
    }
    return RunConfig(**values)


def make_recipe(settings: VitSettings, data: VitData) -> Recipe:
    """Give the changes of images and labels, and the loss."""
    values: dict[str, Any] = {
        "criterion": settings.criterion,
        "label_smoothing": settings.label_smoothing,
        "mixup_alpha": settings.mixup,
        "augment": augmentation(settings, data),
        "noise": settings.noise,
        "noise_on": settings.noise_on,
    }
    return Recipe(**values)
