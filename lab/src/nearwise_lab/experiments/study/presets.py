"""The original study's settings, version by version, with the defects of each."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from nearwise.names import did_you_mean
from nearwise.nn.backbones import IMAGENET_MODELS
from nearwise.training.settings import StrictSettings
from nearwise.warn import warn_user
from nearwise_lab.corrupt import NoiseKind

CORRECTED = "v1"

Views = Literal["mirror-and-crops", "random"]

DEFECTS: dict[str, str] = {
    "misaligned": (
        "A classifier's logits were trained and the vote of the neighbors was evaluated: the "
        "attention never saw a gradient."
    ),
    "leak": (
        "A training row finds itself: its neighbors are sought among the training rows without "
        "leaving it out, so the nearest is itself, at distance 0, with the right label."
    ),
    "collapse": (
        "The space is trained on the labels of its own memory, by a loss that sees each row's "
        "label among its neighbors, which makes the neighbors of a row agree, right or wrong."
    ),
    "nothing-held-out": (
        "Nothing is fitted on rows the memory has not seen, so nothing can learn how often "
        "neighbors are wrong."
    ),
    "noise-in-memory-only": (
        "Robustness was tested with wrong labels in the memory but an embedder trained on the "
        "right ones."
    ),
    "tail-in-memory-only": (
        "Imbalance was tested by rows taken from the memory, with an embedder trained on all rows."
    ),
    "mixup-neighbors": (
        "A mixed query keeps the neighbors of the unmixed row, and the contrastive term its label."
    ),
    "test-chosen": (
        "The best epoch is kept by accuracy on the test rows; there was no third part."
    ),
}
_ALWAYS = (
    "leak", "collapse", "nothing-held-out", "noise-in-memory-only", "tail-in-memory-only",
    "test-chosen",
)  # fmt: skip


class StudyPreset(StrictSettings):
    """Settings of one version of the study; an unknown one raises an error with a suggestion.

    Parameters
    ----------
    name : str
        "v0.1" to "v0.6", or "v0.5-notebook" and "v0.6-notebook": what their notebook ran, where
        that differs from what the study described.
    backbone : str
        "mlp" for tables (other kinds are flattened), or an image backbone such as "resnet18".
    pretrained : bool or "local"
        Start from ImageNet weights. "local": where this machine has them, and from scratch where
        not; `resolve_preset` replaces it by True or False, and warns of the second.
    projection_norm : {"batch", "layer"}
        Of the projection of an image backbone: BatchNorm as in the notebook, or LayerNorm as the
        study's texts say of its later versions.
    image_size, channels : int, optional
        Images are resized and repeated to these; None leaves them as they are.
    dim, num_heads, temperature, temperature_bounds
        Width of the key, heads, and where their temperatures start and are held.
    distance_bias, learn_temperature, learned_k : bool
        Parts of the attention. With the last a query learns from its key how many neighbors it
        asks; a wish of the study that no version had.
    objective : {"neighbors", "classifier"}
        "classifier" trains a linear layer on the key, and the attention not at all.
    n_neighbors, leave_self_out, refresh_every
        Neighbors in training and evaluation; whether a training row is left out of its own (in the
        study it was not); epochs between searches for them.
    epochs, batch_size, lr, embedder_lr_ratio, weight_decay, warmup_epochs, gradient_clip
        Of AdamW with cosine; the embedder learns at `embedder_lr_ratio` of `lr`. `gradient_clip`
        None does not clip.
    knn_weight, contrastive_weight, entropy_weight, selective_weight : float
        Weights of the vote's NLL, the contrastive term, the negative entropy of the weights and
        `selective_risk`; the last is a wish of the study that no version had.
    contrastive_kind, contrastive_temperature, contrastive_margin
        "supervised" is a mean over rows of the means over their positives, "pairs" the notebook's
        mean over all pairs. "margin" is as the study wrote it: the margin only shifts the value.
    label_smoothing, mixup_alpha, mixup_probability : float
    hard_negative_weight, hard_negative_fraction, hard_negative_neighbors
        Rows whose neighbors disagree most are drawn this many times as often; 1 switches it off.
    augment : bool
        Crop, flip and color jitter (digits: rotation) in training.
    precision, compile
        "float32" or "bfloat16"; compile the embedder while the replay trains. Losses then differ
        in their last digits, so it is another run.
    split_seed, seed_offset : int
        Seed of the 80/20 split where there is no official test part (None: the run's seed), and
        what is added to the run's seed, so that a repeated version is another run.
    cnn_epochs, cnn_lr, cnn_weight_decay, cnn_label_smoothing, cnn_batch_size, held_out
        Of the parametric upper bound, and the share of the training rows, at most 5,000, that is
        kept from it for its temperature.
    distance_temperature : float
        Of distance weighting, in the unit of squared L2 distances.
    views : {"mirror-and-crops", "random"}
        Of test-time augmentation beside the original: the mirror image and three crops, as the
        study's texts say, or four crops mirrored at random, as in the notebook.
    ensemble_k, adaptive_k_max, sweep_k
        Neighborhood sizes: of the k-ensemble, that the adaptive rule starts from, of the k-sweep.
    noise_rates, tail_ratios, human_labels, ablations : tuple
        Of the experiments on label noise (with sets of CIFAR-10N labels) and long tails, and the
        parts to switch; None takes all that the preset has.
    max_rows, max_test_rows : int, optional
        A stratified part of the training and test rows; None takes all.
    """

    settings_of = "study"

    name: str
    backbone: str = "resnet18"
    pretrained: bool | Literal["local"] = "local"
    projection_norm: Literal["batch", "layer"] = "batch"
    image_size: int | None = Field(None, ge=4)
    channels: Literal[1, 3] | None = None
    dim: int = Field(128, ge=1)
    num_heads: int = Field(1, ge=1)
    temperature: float = Field(1.0, gt=0)
    temperature_bounds: tuple[float, float] = (0.05, 5.0)
    distance_bias: bool = True
    learn_temperature: bool = True
    learned_k: bool = False

    objective: Literal["neighbors", "classifier"] = "neighbors"
    n_neighbors: int = Field(10, ge=1)
    leave_self_out: bool = False
    refresh_every: int = Field(5, ge=1)
    epochs: int = Field(30, ge=1)
    batch_size: int = Field(256, ge=2)
    lr: float = Field(1e-3, gt=0)
    embedder_lr_ratio: float = Field(0.1, gt=0)
    weight_decay: float = Field(1e-4, ge=0)
    warmup_epochs: float = Field(0.0, ge=0)
    gradient_clip: float | None = Field(1.0, gt=0)
    knn_weight: float = Field(1.0, ge=0)
    contrastive_weight: float = Field(0.0, ge=0)
    contrastive_kind: Literal["supervised", "margin", "pairs"] = "supervised"
    contrastive_temperature: float = Field(0.1, gt=0)
    contrastive_margin: float = Field(0.5, ge=0)
    entropy_weight: float = Field(0.0, ge=0)
    selective_weight: float = Field(0.0, ge=0)
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    mixup_alpha: float = Field(0.0, ge=0)
    mixup_probability: float = Field(0.5, ge=0, le=1)
    hard_negative_weight: float = Field(1.0, ge=1)
    hard_negative_fraction: float = Field(0.3, gt=0, le=1)
    hard_negative_neighbors: int = Field(10, ge=1)
    augment: bool = True
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    split_seed: int | None = Field(42, ge=0)
    seed_offset: int = Field(0, ge=0)

    cnn_epochs: int = Field(30, ge=1)
    cnn_lr: float = Field(1e-3, gt=0)
    cnn_weight_decay: float = Field(1e-4, ge=0)
    cnn_label_smoothing: float = Field(0.1, ge=0, lt=1)
    cnn_batch_size: int = Field(256, ge=2)
    held_out: float = Field(0.1, gt=0, lt=1)

    distance_temperature: float = Field(1.0, gt=0)
    views: Views = "mirror-and-crops"
    ensemble_k: tuple[int, ...] = (5, 10, 20)
    adaptive_k_max: int = Field(50, ge=1)
    sweep_k: tuple[int, ...] = (1, 3, 5, 10, 20, 50)
    noise_rates: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3)
    tail_ratios: tuple[float, ...] = (1.0, 0.1, 0.01)
    human_labels: tuple[Literal["worse", "aggregate"], ...] = ("worse", "aggregate")
    ablations: tuple[str, ...] | None = None
    max_rows: int | None = Field(None, ge=10)
    max_test_rows: int | None = Field(None, ge=10)

    @model_validator(mode="after")
    def _check_together(self) -> "StudyPreset":
        if self.dim % self.num_heads:
            raise ValueError(
                f"dim={self.dim} is not a multiple of num_heads={self.num_heads}. Change one."
            )
        low, high = self.temperature_bounds
        if not 0 < low <= self.temperature <= high:
            raise ValueError(
                f"temperature={self.temperature} lies outside temperature_bounds="
                f"{self.temperature_bounds}. Change one."
            )
        if self.objective == "neighbors" and not (self.knn_weight or self.contrastive_weight):
            raise ValueError(
                "knn_weight and contrastive_weight are both 0, so there is nothing to train. Give "
                "one of them a positive weight."
            )
        if not self.sweep_k or min(self.sweep_k) < 1 or min(self.ensemble_k, default=0) < 1:
            raise ValueError("sweep_k and ensemble_k need at least one size each, from 1 on.")
        return self

    @property
    def noise_grid(self) -> list[tuple[float, NoiseKind]]:
        """Rates and kinds of label noise, each once; rate 0 has no kind."""
        return [
            *((rate, "symmetric") for rate in self.noise_rates),
            *((rate, "asymmetric") for rate in self.noise_rates if rate),
        ]

    @property
    def defects(self) -> dict[str, str]:
        """Defects of this version with its settings, by name, each with its effect."""
        found = ["misaligned"] if self.objective == "classifier" else []
        found += [d for d in _ALWAYS if not (d in ("leak", "collapse") and self.leave_self_out)]
        found += ["mixup-neighbors"] if self.mixup_alpha else []
        return {name: DEFECTS[name] for name in found}


_FIRST = {"dim": 128, "num_heads": 1, "epochs": 30, "batch_size": 256, "n_neighbors": 10}
_FOURTH = {
    "backbone": "resnet50", "dim": 256, "num_heads": 4, "epochs": 50, "warmup_epochs": 5.0,
    "batch_size": 256, "n_neighbors": 10, "contrastive_weight": 0.5, "contrastive_kind": "margin",
    "contrastive_margin": 0.5, "hard_negative_weight": 2.0, "temperature": 0.5,
    "temperature_bounds": (0.05, 2.0), "projection_norm": "layer",
}  # fmt: skip
_FIFTH = {
    "dim": 256, "num_heads": 4, "epochs": 20, "batch_size": 512, "n_neighbors": 16, "lr": 2e-4,
    "mixup_alpha": 0.4, "label_smoothing": 0.1, "contrastive_weight": 0.5, "entropy_weight": 0.01,
    "augment": False, "temperature": 0.5, "temperature_bounds": (0.05, 2.0),
    "projection_norm": "layer",
}  # fmt: skip
# The notebook left out what the study described beside it, and its heads started elsewhere.
_NOTEBOOK = {
    **_FIFTH, "lr": 1e-3, "mixup_alpha": 0.0, "label_smoothing": 0.0, "entropy_weight": 0.0,
    "gradient_clip": None, "temperature": 1.0, "temperature_bounds": (0.05, 5.0),
    "projection_norm": "batch", "contrastive_kind": "pairs", "views": "random",
}  # fmt: skip
_SETTINGS: dict[str, dict[str, Any]] = {
    "v0.1": {**_FIRST, "objective": "classifier"},
    "v0.2": {**_FIRST, "objective": "classifier", "seed_offset": 100},
    "v0.3": _FIRST,
    "v0.4": _FOURTH,
    "v0.5": _FIFTH,
    "v0.5-notebook": _NOTEBOOK,
    "v0.6": {**_FIFTH, "seed_offset": 100},
    "v0.6-notebook": {**_NOTEBOOK, "seed_offset": 100},
}
PRESETS: dict[str, StudyPreset] = {
    name: StudyPreset(name=name, **settings) for name, settings in _SETTINGS.items()
}
PRESET_NAMES: tuple[str, ...] = (*PRESETS, CORRECTED)

# What the study did otherwise on these data sets. Digits of 8 pixels stand in for MNIST.
_SETS: dict[str, dict[str, Any]] = {
    "mnist": {"image_size": 32, "channels": 3},
    "digits-images": {
        "backbone": "resnet-small",
        "batch_size": 64,
        "cnn_batch_size": 64,
        "lr": 2e-3,
    },
}
_SMALL: dict[str, Any] = {
    "max_rows": 1200, "max_test_rows": 400, "epochs": 6, "cnn_epochs": 6, "batch_size": 64,
    "cnn_batch_size": 64, "warmup_epochs": 0.0, "sweep_k": (1, 5, 20), "noise_rates": (0.0, 0.3),
    "tail_ratios": (1.0, 0.1), "dim": 64, "lr": 1e-2, "refresh_every": 2, "human_labels": (),
    "ablations": (
        "full", "without=contrastive", "without=mixup", "with=leave-self-out", "without=base",
        "without=null-neighbor",
    ),
}  # fmt: skip
# Photographs take longer than digits of 8 pixels.
_SMALL_PHOTOS: dict[str, Any] = {"max_rows": 800, "max_test_rows": 300, "epochs": 4}


def get_preset(name: str) -> StudyPreset:
    """Find a preset of the study by name; the error for a wrong name suggests the nearest."""
    check_preset_name(name)
    if name == CORRECTED:
        raise ValueError(
            f"{CORRECTED!r} is not a version of the study but nearwise's own method: it has the "
            "settings of AttnKNNClassifier."
        )
    return PRESETS[name]


def check_preset_name(name: str) -> None:
    """Refuse a name that is neither a version of the study nor "v1"."""
    if name not in PRESET_NAMES:
        hint = did_you_mean(name, PRESET_NAMES)
        raise ValueError(f"unknown preset {name!r}.{hint} Known: {', '.join(PRESET_NAMES)}.")


def resolve_preset(
    name: str,
    dataset: str,
    kind: str,
    n_rows: int,
    *,
    small: bool = False,
    overrides: Mapping[str, Any] | None = None,
) -> StudyPreset:
    """Lay settings over each other: the version's, the data set's, the small size's, the user's.

    Tables take the tabular embedder and, by their number of rows, batches of 32, 64 or 512.
    ValueError if a name is unknown or a value does not fit.

    Parameters
    ----------
    name : str
        One of `PRESETS`.
    dataset, kind, n_rows
        Name, kind and number of rows of the data set.
    small : bool, default=False
        Lay the small size over the version's settings.
    overrides : mapping, optional
        Fields to change; they override everything else.
    """
    settings = get_preset(name).model_dump() | _SETS.get(dataset, {})
    if small:
        settings |= _SMALL
        if kind == "images":
            settings |= {"backbone": "resnet-small"}
            settings |= {} if dataset == "digits-images" else _SMALL_PHOTOS
    if kind != "images":
        batch = 32 if n_rows < 500 else 64 if n_rows < 5000 else 512
        settings |= {"backbone": "mlp", "augment": False, "batch_size": batch}
    preset = change_preset(settings, overrides or {})
    if preset.pretrained != "local":
        return preset
    starts = has_local_weights(preset.backbone)
    if not starts and kind == "images":
        warn_user(
            f"{name} starts from scratch here, and not from ImageNet as in the study: this "
            f"machine holds no such weights of {preset.backbone!r}."
        )
    return change_preset(preset, {"pretrained": starts})


def has_local_weights(backbone: str) -> bool:
    """Whether this machine holds ImageNet weights of a named backbone; the hub is not queried."""
    from huggingface_hub import try_to_load_from_cache

    source = IMAGENET_MODELS.get(backbone)
    return source is not None and isinstance(
        try_to_load_from_cache(source, "model.safetensors"), str
    )


def change_preset(
    preset: StudyPreset | Mapping[str, Any], changes: Mapping[str, Any]
) -> StudyPreset:
    """Return the preset with changed fields, validated again; unknown ones get a hint."""
    settings = preset.model_dump() if isinstance(preset, StudyPreset) else dict(preset)
    return StudyPreset(**settings | dict(changes))
