"""One data set, split and folder of the study: fields trained, and probes that read encoders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearwise.data import Context
from nearwise.data.images.pixels import as_images
from nearwise.probes import Encoder, TransformerProbe
from nearwise.probes.base import Probe
from nearwise_lab.experiments.fields import FieldRun, find_field, run_field
from nearwise_lab.experiments.representations.settings import (
    PIXELS,
    RANDOM,
    Arm,
    StudyConfig,
    arm_of,
)
from nearwise_lab.experiments.side_by_side import Progress
from nearwise_lab.field_training.config import Objective
from nearwise_lab.nn.field import PerceiverAutoencoder
from nearwise_lab.probing import Patches, RandomInit, SparsePoints, evaluate
from nearwise_lab.probing.catalog import make_probe
from nearwise_lab.probing.data import ProbeData

_LIGHT = ("knn", "linear")  # of the comparisons of protocols and of pooling
_TRANSFORMER = "transformer"
_HEAVY = ("attention", _TRANSFORMER)  # trained at length; they get `heavy_draws`
_LEFT = ("row_nll", "versions", "hardware", "command", "time")  # long, or in the facts of all
Records = list[dict[str, Any]]


@dataclass(frozen=True)
class Study:
    """Settings, data and folder of a study, and its progress callback."""

    name: str
    data: ProbeData
    config: StudyConfig
    folder: Path
    device: str
    progress: Progress

    @property
    def cache(self) -> Path:
        """Folder of extracted features."""
        return self.folder / "features"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images."""
        channels, height, width = as_images(self.data.train.images[:1]).shape[1:]
        return channels, height, width

    def train(self, arm: Arm, seed: int, n_stages: int | None = None) -> FieldRun:
        """Train a field, or load it; a stage of two arms is trained once."""
        return run_field(
            self.data,
            self.config.stages(arm.stages[:n_stages]),
            self.folder / "models",
            dataset=self.name,
            seed=seed,
            device=self.device,
            progress=lambda words: self.progress(f"seed {seed}, training {arm.title}: {words}"),
        )

    def is_trained(self, stages: Sequence[Objective], seed: int) -> bool:
        """Whether a field is trained."""
        wanted = self.config.stages(stages)
        return find_field(self.data, wanted, self.folder / "models", seed=seed) is not None

    def encoders(self, arms: Sequence[Arm], seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Every encoder of the arms, trained if missing; and the runs of the fields."""
        fields = {arm.name: self.train(arm, seed) for arm in arms if arm.stages}
        channels, height, width = self.shape
        made: dict[str, Any] = {}
        for arm in arms:
            if arm.name == PIXELS:
                made[PIXELS] = Patches(self.config.patch, (height, width), channels)
            elif arm.name == RANDOM:
                made[RANDOM] = RandomInit(lambda: self._untrained(seed), seed)
            else:
                made[arm.name] = fields[arm.name].model
        return made, fields

    def probe(self, encoders: Mapping[str, Encoder], seed: int) -> Records:
        """Measure all parts of the study, except results that are in the folder."""
        config = self.config
        light = [p for p in config.probes if p not in _HEAVY]
        heavy = [p for p in config.probes if p in _HEAVY]
        cheap = [p for p in config.probes if p in _LIGHT]
        draws, few = range(config.draws), range(config.heavy_draws)
        records = self._evaluated("main", encoders, light, config.contexts, draws, seed)
        records += self._evaluated("main", encoders, heavy, config.contexts, few, seed)
        shown = config.protocol_contexts
        records += self._evaluated("protocol", encoders, cheap, shown, draws, seed)
        fields = {n: e for n, e in encoders.items() if arm_of(n).stages or n == RANDOM}
        for pool in ("mean", "flatten") if config.pooling else ():
            records += self._evaluated("pooling", fields, cheap, ["full"], [0], seed, pool)
        return records

    def _evaluated(
        self,
        part: str,
        encoders: Mapping[str, Encoder],
        probes: Sequence[str],
        contexts: Sequence[str],
        draws: Sequence[int],
        seed: int,
        pool: str | None = None,
    ) -> Records:
        def show(what: str, done: int, of: int) -> None:
            if done < of:
                self.progress(f"seed {seed}, probing {what} ({part}, {done} of {of})")

        records: Records = []
        for name, encoder in encoders.items():
            for reader, read, shown in self._readings(name, encoder, probes, contexts, seed):
                records += evaluate(
                    {name: reader},
                    self.data,
                    probes=self._made(read, reader, seed),
                    contexts=shown,
                    pools=[pool or arm_of(name).pool],
                    draws=draws,
                    seeds=[seed],
                    batch_size=self.config.batch_size,
                    device=self.device,
                    precision=self.config.precision,
                    views=self.config.views,
                    folder=self.folder / "probes",
                    shared=True,  # by the seeds of the fields, which have one name
                    cache=self.cache,
                    progress=show,
                )
        kept = [{k: v for k, v in r.items() if k not in _LEFT} for r in records]
        return [{**r, "part": part, "seed": seed} for r in kept]

    def _readings(
        self, name: str, encoder: Any, probes: Sequence[str], contexts: Sequence[str], seed: int
    ) -> list[tuple[Any, list[str], list[str]]]:
        """Return the encoder for each probe and context.

        Patches with holes do not distinguish a hidden pixel from a black one. So where pixels are
        hidden, probes that read tokens get the original pixels as fields do: as points, with the
        Fourier features of their positions.
        """
        deep = [p for p in probes if name == PIXELS and make_probe(p).reads_tokens]
        hiding = [c for c in contexts if Context.parse(c).kind != "full"]
        channels, height, width = self.shape
        found = [
            (encoder, [p for p in probes if p not in deep], list(contexts)),
            (encoder, deep, [c for c in contexts if c not in hiding]),
        ]
        if deep and hiding:
            fourier = self._untrained(seed).fourier
            found.append((SparsePoints((height, width), channels, fourier), deep, hiding))
        return [reading for reading in found if reading[1] and reading[2]]

    def _made(
        self, names: Sequence[str], encoder: Any, seed: int
    ) -> Sequence[str] | dict[str, Probe]:
        """Probes by name, or made by a setting."""
        own = self.config.transformer
        if _TRANSFORMER not in names or not own:
            return names
        ordered = bool(getattr(encoder, "ordered", True))
        deep = TransformerProbe(**own, positions=ordered, device=self.device, random_state=seed)
        return {
            n: deep if n == _TRANSFORMER else make_probe(n, seed=seed, device=self.device)
            for n in names
        }

    def _untrained(self, seed: int) -> PerceiverAutoencoder:
        """Make the untrained network of the fields of a seed."""
        channels, height, width = self.shape
        (config,) = self.config.stages(["reconstruction"])
        return PerceiverAutoencoder(config.perceiver((height, width), channels), random_state=seed)
