"""Encoders of the study, and its settings for each data set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from nearwise.data.contexts import Context
from nearwise.names import did_you_mean
from nearwise.probes import TransformerProbe
from nearwise.training.settings import StrictSettings
from nearwise_lab.experiments.fields import stage_configs, usual_epochs
from nearwise_lab.field_training import FieldConfig
from nearwise_lab.field_training.config import Objective, Preset
from nearwise_lab.nn.field import PRESETS
from nearwise_lab.probing.catalog import check_probe_names


@dataclass(frozen=True)
class Arm:
    """One encoder of the study.

    Attributes
    ----------
    name, title : str
        In records, and in words.
    stages : tuple of objectives
        What a field is trained by, one stage after the other; empty for what is not trained. All
        fields take the same number of steps: where one is finetuned with the contrastive term, its
        control goes on without it for as many.
    pool : str
        How its tokens become one vector for k-NN, attention and linear probes.
    """

    name: str
    title: str
    stages: tuple[Objective, ...] = ()
    pool: Literal["mean", "flatten"] = "mean"


PIXELS, RANDOM = "pixels", "random"
ARMS = (
    Arm(PIXELS, "original pixels", pool="flatten"),
    Arm("sparse", "sparse", ("sparse", "sparse")),
    Arm("full", "full baseline", ("reconstruction", "reconstruction")),
    Arm("full+nce", "full + NCE", ("reconstruction", "nce")),
    Arm("sparse+nce", "sparse + NCE", ("sparse", "sparse-nce")),
    Arm(RANDOM, "random init"),
)
FIVE = tuple(arm.name for arm in ARMS if arm.name != RANDOM)
"""The five bars of the study, in its order."""


def arm_of(name: str) -> Arm:
    """Look an arm up by name; an encoder of the user's own is mean-pooled under its name."""
    return next((arm for arm in ARMS if arm.name == name), Arm(name, name))


_RECIPES: dict[str, dict[str, Any]] = {
    "digits-images": {"preset": "digits", "patch": 2,
                      "transformer": {"d_model": 64, "epochs": 15, "batch_size": 32}},
}  # fmt: skip
# Of the transformer probe, but set for each reading.
_OF_STUDY = ("positions", "device", "random_state")


class StudyConfig(StrictSettings):
    """Settings of `run_comparison`; an unknown setting raises an error that suggests the nearest.

    Parameters
    ----------
    preset : str
        Sizes of the neural fields, see `FieldConfig`.
    epochs, finetune_epochs : int
        Of the first stage and of the second, which every field goes through; default the
        preset's own.
    field : dict
        Further settings of `FieldConfig`, the same for every field.
    patch : int
        Side of the patches that make the tokens of the original pixels; flattened they are the
        pixels.
    contexts : tuple of str
        What encoders are shown when they are probed, such as "full" and "0.2".
    probes : tuple of str
        Names of `nearwise_lab.probing.PROBES`.
    transformer : dict
        Settings of `TransformerProbe` for the probe "transformer"; none: its own.
    views : int
        Of each training image that probes read: itself, and this many less one of its random crops
        and mirror images. Digits should have one.
    draws, heavy_draws : int
        Draws of each sparse context: for k-NN and linear probes, and for probes that are trained.
    protocol : bool
        Whether the ways of hiding pixels (one layout, per image, per batch) are compared.
    pooling : bool
        Whether flattened tokens are compared with their mean.
    test_size, validation : float
        Shares of rows, where there is no official test part, and of the training rows.
    limit : (int, int), optional
        At most this many training (validation included) and test rows.
    split_seed : int
        One split for all seeds: differences are paired over its test rows.
    geometry_rows, map_rows, shown : int
        Test rows of geometry and maps, and test images shown reconstructed.
    batch_size : int
        Images encoded at once.
    precision : {"float32", "bfloat16"}
        Of encoding.
    """

    settings_of = "study"

    preset: Preset = "S64"
    epochs: int = Field(20, ge=1)
    finetune_epochs: int = Field(5, ge=1)
    field: dict[str, Any] = Field(default_factory=dict)
    patch: int = Field(4, ge=1)
    contexts: tuple[str, ...] = ("full", "0.2")
    probes: tuple[str, ...] = ("knn", "attention", "linear", "transformer")
    transformer: dict[str, Any] = Field(default_factory=dict)
    views: int = Field(1, ge=1)
    draws: int = Field(3, ge=1)
    heavy_draws: int = Field(1, ge=1)
    protocol: bool = True
    pooling: bool = True
    test_size: float = Field(500 / 1797, gt=0, lt=1)
    validation: float = Field(0.1, gt=0, lt=1)
    limit: tuple[int, int] | None = None
    split_seed: int = 0
    geometry_rows: int = Field(2000, ge=50)
    map_rows: int = Field(500, ge=50)
    shown: int = Field(8, ge=1)
    batch_size: int = Field(256, ge=1)
    precision: Literal["float32", "bfloat16"] = "float32"

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        preset = values.get("preset", "S64")
        if preset not in PRESETS:
            return values
        first, later = usual_epochs(preset)
        return {"epochs": first, "finetune_epochs": later, **values}

    @field_validator("contexts")
    @classmethod
    def _readable(cls, contexts: tuple[str, ...]) -> tuple[str, ...]:
        if not contexts:
            raise ValueError('contexts is empty. Write "full,0.2".')
        return tuple(dict.fromkeys(str(Context.parse(c)) for c in contexts))

    @field_validator("probes")
    @classmethod
    def _known_probes(cls, probes: tuple[str, ...]) -> tuple[str, ...]:
        if not probes:
            raise ValueError('probes is empty. Write "knn,attention".')
        check_probe_names(probes)
        return tuple(dict.fromkeys(probes))

    @field_validator("transformer")
    @classmethod
    def _settings_of_the_probe(cls, settings: dict[str, Any]) -> dict[str, Any]:
        known = [name for name in signature(TransformerProbe).parameters if name not in _OF_STUDY]
        for name in settings:
            if name not in known:
                hint = did_you_mean(name, known) or f" Known settings: {', '.join(known)}."
                raise ValueError(f"Unknown transformer setting {name!r}.{hint}")
        return settings

    @property
    def fraction(self) -> float:
        """Share of pixels that sparse fields are trained on: the first sparse context's."""
        shares = [c.fraction for c in map(Context.parse, self.contexts) if c.kind != "full"]
        return shares[0] if shares else 0.2

    @property
    def protocol_contexts(self) -> tuple[str, ...]:
        """The three layouts of hidden pixels, with the same share; none if no pixel is hidden."""
        if not self.protocol or self.contexts == ("full",):
            return ()
        kinds: tuple[Literal["fixed", "per-image", "per-batch"], ...] = (
            "fixed", "per-image", "per-batch",
        )  # fmt: skip
        return tuple(str(Context(kind, self.fraction)) for kind in kinds)

    def stages(self, names: Sequence[Objective]) -> list[FieldConfig]:
        """Return the settings of the training stages of a field."""
        chosen = {"preset": self.preset, "context": self.fraction, **self.field}
        return stage_configs(names, chosen, self.epochs, self.finetune_epochs)


def study_config(dataset: str, changes: dict[str, Any] | None = None) -> StudyConfig:
    """Return the settings for a data set: its recipe with `changes`, also in nested settings.

    Parameters
    ----------
    dataset : str
        Name of an image set.
    changes : dict, optional

    Raises
    ------
    ValueError
        If a setting is unknown or out of range.
    """
    settings = dict(_RECIPES.get(dataset, {}))
    for name, value in (changes or {}).items():
        nested = isinstance(value, Mapping) and isinstance(settings.get(name), Mapping)
        settings[name] = {**settings[name], **value} if nested else value
    return StudyConfig(**settings)
