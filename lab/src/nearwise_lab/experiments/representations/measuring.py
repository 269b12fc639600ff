"""What is measured for one seed of the study: fields trained, probes read, features measured."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from nearwise.conditions import command_line, hardware, versions
from nearwise.data import Context, Dataset
from nearwise.data.images.pixels import as_images
from nearwise.probes import Encoder, TransformerProbe
from nearwise.probes.base import Probe
from nearwise.probes.encoders import fingerprint_of
from nearwise.safe_files import plain
from nearwise_lab.experiments.artifacts import load_json, save_json
from nearwise_lab.experiments.fields import FieldProgress, FieldRun, find_field, run_field
from nearwise_lab.experiments.representations.arms import FIELDS, PIXELS, RANDOM, Arm, arm_of
from nearwise_lab.experiments.representations.looking import Looker, reconstructed
from nearwise_lab.experiments.representations.records import MAIN, POOLING, PROTOCOL
from nearwise_lab.experiments.representations.settings import StudyConfig
from nearwise_lab.experiments.side_by_side import Progress
from nearwise_lab.field_training.run import Objective
from nearwise_lab.nn.field import PerceiverAutoencoder
from nearwise_lab.probing import Patches, RandomInit, SparsePoints, evaluate
from nearwise_lab.probing.catalog import make_probe
from nearwise_lab.probing.data import ProbeData, digest_of_part

LIGHT = ("knn", "linear")
"""Probes of the comparisons of protocols and of pooling."""
TRANSFORMER = "transformer"
_LEFT = ("row_nll", "versions", "hardware", "command", "time")  # long, or in the facts of all
TRAINED = ("attention", TRANSFORMER)
"""Probes that are trained at length; they get `heavy_draws`."""


@dataclass
class Found:
    """What the seeds left so far."""

    records: list[dict[str, Any]] = field(default_factory=list)
    geometry: list[dict[str, Any]] = field(default_factory=list)
    fields: list[dict[str, Any]] = field(default_factory=list)
    maps: list[dict[str, Any]] = field(default_factory=list)
    pictures: dict[str, Any] = field(default_factory=dict)


class Study:
    """One data set, split and folder."""

    def __init__(
        self,
        name: str,
        data: ProbeData,
        config: StudyConfig,
        folder: Path,
        device: str,
        progress: Progress,
    ) -> None:
        self.name, self.data, self.config, self.folder = name, data, config, folder
        self.device, self.progress = device, progress
        self.models, self.cache = folder / "models", folder / "features"
        self.shape = tuple(as_images(data.train.images[:1]).shape[1:])
        self.digest = [digest_of_part(data.train), digest_of_part(data.test)]
        self.looker = Looker(data, config, device, self.cache)

    def run_seed(
        self,
        found: Found,
        arms: Sequence[Arm],
        others: Mapping[str, Encoder],
        seed: int,
        *,
        pictures: bool,
    ) -> None:
        """Train, probe and measure, for one seed."""
        fields = {arm.name: self.train(arm.title, arm.stages, seed) for arm in arms if arm.is_field}
        encoders = self.encoders(arms, fields, seed) | dict(others)
        found.records += self.probe(encoders, seed)
        measured = self.remembered(encoders, fields, seed)
        found.geometry += measured["geometry"]
        found.fields += measured["fields"]
        if pictures:
            self.progress(f"seed {seed}, maps and reconstructions")
            found.maps = self.looker.maps(encoders, seed, self.progress)
            found.pictures = self.looker.pictures(fields, seed) if fields else {}

    def train(self, title: str, stages: Sequence[Objective], seed: int) -> FieldRun:
        """Train a field, or find it; a stage that two arms share is trained once."""
        label = f"seed {seed}, training {title}"
        progress = FieldProgress(
            lambda stage, step, of: self.progress(f"{label}: {stage}, step {step} of {of}"),
            lambda stage, record: None,
        )
        return run_field(
            self.data,
            self.config.stages(stages),
            self.models,
            dataset=self.name,
            seed=seed,
            device=self.device,
            progress=progress,
        )

    def trained(self, stages: Sequence[Objective], seed: int) -> FieldRun | None:
        """Find a trained field."""
        return find_field(self.data, self.config.stages(stages), self.models, seed=seed)

    def probe_arm(self, arm: Arm, seed: int) -> list[dict[str, Any]]:
        """Train one arm where it is a field, and measure it."""
        fields = {arm.name: self.train(arm.title, arm.stages, seed)} if arm.is_field else {}
        return self.probe(self.encoders([arm], fields, seed), seed)

    def encoders(
        self, arms: Sequence[Arm], fields: Mapping[str, FieldRun], seed: int
    ) -> dict[str, Encoder]:
        """Every encoder of the arms."""
        channels, height, width = self.shape
        made: dict[str, Any] = {}
        for arm in arms:
            if arm.name == PIXELS:
                made[arm.name] = Patches(self.config.patch, (height, width), channels)
            elif arm.name == RANDOM:
                fresh: Any = partial(self.untrained, seed)
                made[arm.name] = RandomInit(fresh, seed)
            else:
                made[arm.name] = fields[arm.name].model
        return made

    def untrained(self, seed: int) -> PerceiverAutoencoder:
        """Make the network that the fields of a seed start as."""
        channels, height, width = self.shape
        (config,) = self.config.stages(["reconstruction"])
        return PerceiverAutoencoder(config.perceiver((height, width), channels), random_state=seed)

    def readings(
        self, name: str, encoder: Encoder, probes: Sequence[str], contexts: Sequence[str], seed: int
    ) -> list[tuple[Encoder, list[str], list[str]]]:
        """Return which encoder each probe reads from each context.

        Patches with holes do not distinguish a hidden pixel from a black one. So where pixels are
        hidden, probes that read tokens get the original pixels as fields do: as points, with the
        Fourier features of their positions.
        """
        deep = [p for p in probes if make_probe(p).reads_tokens]
        partial_ = [c for c in contexts if Context.parse(c).kind != "full"]
        if name != PIXELS or not deep or not partial_:
            return [(encoder, list(probes), list(contexts))]
        channels, height, width = self.shape
        points = SparsePoints((height, width), channels, self.untrained(seed).fourier)
        found = [
            (encoder, [p for p in probes if p not in deep], list(contexts)),
            (encoder, deep, [c for c in contexts if c not in partial_]),
            (points, deep, partial_),
        ]
        return [reading for reading in found if reading[1] and reading[2]]

    def probe(self, encoders: Mapping[str, Encoder], seed: int) -> list[dict[str, Any]]:
        """Measure all parts of the study."""
        config = self.config
        light = [p for p in config.probes if p not in TRAINED]
        heavy = [p for p in config.probes if p in TRAINED]
        cheap = [p for p in config.probes if p in LIGHT]
        draws, few = range(config.draws), range(config.heavy_draws)
        records = self.evaluated(MAIN, encoders, light, config.contexts, draws, seed)
        records += self.evaluated(MAIN, encoders, heavy, config.contexts, few, seed)
        if config.protocol_contexts and cheap:
            shown = config.protocol_contexts
            records += self.evaluated(PROTOCOL, encoders, cheap, shown, draws, seed)
        fields = {n: e for n, e in encoders.items() if n in (*FIELDS, RANDOM)}
        if config.pooling and cheap and fields:
            for pool in ("mean", "flatten"):
                records += self.evaluated(POOLING, fields, cheap, ["full"], [0], seed, pool)
        return records

    def evaluated(
        self,
        part: str,
        encoders: Mapping[str, Encoder],
        probes: Sequence[str],
        contexts: Sequence[str],
        draws: Sequence[int],
        seed: int,
        pool: str | None = None,
    ) -> list[dict[str, Any]]:
        """Measure some encoders; what the folder holds is not measured again."""
        if not probes:
            return []
        records = []
        readings = [
            (name, *reading)
            for name, encoder in encoders.items()
            for reading in self.readings(name, encoder, probes, contexts, seed)
        ]
        for name, reader, read, shown in readings:
            records += evaluate(
                {name: reader},
                self.data,
                probes=self.made(read, reader, seed),
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
                progress=lambda what, done, of: (
                    self.progress(f"seed {seed}, probing {what} ({part}, {done} of {of})")
                    if done < of
                    else None
                ),
            )
        kept = [{k: v for k, v in r.items() if k not in _LEFT} for r in records]
        return [{**r, "part": part, "seed": seed} for r in kept]

    def made(
        self, names: Sequence[str], encoder: Encoder, seed: int
    ) -> Sequence[str] | dict[str, Probe]:
        """Probes by name, or made by a setting."""
        own = self.config.transformer
        if TRANSFORMER not in names or not own:
            return names
        made = {n: make_probe(n, seed=seed, device=self.device) for n in names if n != TRANSFORMER}
        ordered = bool(getattr(encoder, "ordered", True))
        deep = TransformerProbe(**own, positions=ordered, device=self.device, random_state=seed)
        return {n: made.get(n, deep) for n in names}

    def remembered(
        self, encoders: Mapping[str, Encoder], fields: Mapping[str, FieldRun], seed: int
    ) -> dict[str, Any]:
        """Geometry and reconstruction errors, measured once for the same encoders."""
        first = as_images(self.data.train.images)
        decides = {
            "encoders": {n: fingerprint_of(e, first) for n, e in encoders.items()},
            "data": self.digest,
            "config": [self.config.contexts, self.config.geometry_rows, self.config.precision],
        }
        key = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:24]
        path = self.folder / "looked" / f"{key}.json"
        kept = load_json(path)
        if kept is None:
            self.progress(f"seed {seed}, geometry of {len(encoders)} encoders")
            geometry = self.looker.geometry(encoders, seed)
            kept = plain({"geometry": geometry, "fields": reconstructed(fields, self.looker, seed)})
            save_json(path, kept)
        return dict(kept)

    def facts(self, dataset: Dataset) -> dict[str, Any]:
        """Conditions of the numbers."""
        train, validation, test = (len(part.labels) for part in self.data)
        described = self.config.model_dump(mode="json")
        return {
            "dataset": dataset.name,
            "classes": [str(c) for c in dataset.classes],
            "sizes": f"{train:,} training, {validation:,} validation, {test:,} test",
            "settings": ", ".join(f"{k} {v}" for k, v in described.items()),
            "config": described,
            "hardware": ", ".join(f"{k} {v}" for k, v in hardware().items()),
            "versions": ", ".join(f"{k} {v}" for k, v in versions().items()),
            "command": command_line(),
        }
