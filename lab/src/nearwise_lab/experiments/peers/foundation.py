"""Foundation models for tables (TabICL, TabPFN, LightPFN) from checkpoints on this machine."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from nearwise_lab.experiments.peers.peer import Peer
from nearwise_lab.experiments.preprocess import Table

FoundationModel = Literal["tabicl", "tabpfn", "lightpfn"]

CLASSES: dict[str, str] = {  # by the name of the package, which is the method's too
    "tabicl": "TabICLClassifier",
    "tabpfn": "TabPFNClassifier",
    "lightpfn": "LightPFNClassifier",
}
MB = 10**6


@dataclass(frozen=True)
class Checkpoint:
    """Weights of a foundation model on this machine: a file, or a folder that the package reads.

    `sha256` are the first 16 digits over the names and contents of its files, `mb` is their size in
    10**6 bytes.
    """

    path: Path
    sha256: str
    mb: float

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> "Checkpoint":
        """Check a file or folder; ValueError where there is none."""
        path = Path(path)
        if not path.exists():
            raise ValueError(f"there is no checkpoint at {path}. Weights are never downloaded.")
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        digest = hashlib.sha256()
        for file in files:
            digest.update(file.name.encode())
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
        return cls(path, digest.hexdigest()[:16], sum(p.stat().st_size for p in files) / MB)


def find_checkpoints(given: Sequence[str]) -> dict[str, Checkpoint]:
    """Parse ``--peer-weights`` into checkpoints by model name.

    Each is NAME=PATH, or a folder with checkpoints whose names begin with that of a model
    (``tabicl-classifier-v2-20260212.ckpt``); regressors are left out. ValueError if a name is
    unknown, a path is missing, or a folder has none or several for a model.
    """
    found: dict[str, Checkpoint] = {}
    for one in given:
        name, equals, path = one.partition("=")
        if equals:
            if name not in CLASSES:
                known = ", ".join(CLASSES)
                raise ValueError(f"--peer-weights {one}: {name!r} is not one of {known}.")
            found[name] = Checkpoint.of(path)
        else:
            found |= _in_folder(Path(one))
    return found


def _in_folder(folder: Path) -> dict[str, Checkpoint]:
    if not folder.is_dir():
        raise ValueError(
            f"--peer-weights {folder} is not a folder. Pass a folder of checkpoints, or NAME=PATH."
        )
    found = {}
    for name in CLASSES:
        paths = [
            path
            for path in sorted(folder.iterdir())
            if path.name.lower().startswith(name) and "regressor" not in path.name.lower()
        ]
        if len(paths) > 1:
            names = ", ".join(path.name for path in paths)
            raise ValueError(
                f"{folder} has several checkpoints of {name}: {names}. Pass {name}=PATH."
            )
        if paths:
            found[name] = Checkpoint.of(paths[0])
    if not found:
        raise ValueError(
            f"{folder} has no file or folder whose name begins with {', '.join(CLASSES)}. "
            "Pass NAME=PATH."
        )
    return found


def as_checkpoints(
    given: Mapping[str, str | os.PathLike[str] | Checkpoint] | None,
) -> dict[str, Checkpoint]:
    """Check the checkpoints that are passed to `compare` by name."""
    if unknown := sorted({*(given or {})} - {*CLASSES}):
        raise ValueError(f"peer_weights has {', '.join(unknown)}; known: {', '.join(CLASSES)}.")
    return {
        name: one if isinstance(one, Checkpoint) else Checkpoint.of(one)
        for name, one in (given or {}).items()
    }


@dataclass(eq=False, repr=False)
class PretrainedClassifier(Peer):
    """One foundation model with weights of this machine, on the CPU; nothing is downloaded.

    Rows go in as they are: numbers with gaps, categories as categories. Written against the
    published interface of tabicl 2.2, tabpfn 9.2 and lightpfn 1.1.
    """

    model: FoundationModel
    checkpoint: Checkpoint
    n_threads: int = 1
    random_state: int = 0

    def fit(self, X: Table, y: np.ndarray) -> Self:
        """Load the model with these rows as its context."""
        path, seed = self.checkpoint.path, self.random_state
        if not path.exists():  # the packages would download it
            raise FileNotFoundError(f"the checkpoint {path} is gone.")
        settings: dict[str, Any] = {
            "tabicl": {"model_path": str(path), "allow_auto_download": False,
                       "n_jobs": self.n_threads},
            "tabpfn": {"model_path": str(path), "ignore_pretraining_limits": True},
            "lightpfn": {"checkpoint": str(path), "n_threads": self.n_threads},
        }[self.model]  # fmt: skip
        build = getattr(import_module(self.model), CLASSES[self.model])
        self._model = build(device="cpu", random_state=seed, **settings).fit(X, y)
        self.classes_ = np.asarray(self._model.classes_)
        self.choice_ = {
            "checkpoint": path.name,
            "checkpoint_sha256": self.checkpoint.sha256,
            "checkpoint_mb": self.checkpoint.mb,
        }
        return self

    def _proba(self, X: Table) -> np.ndarray:
        return np.asarray(self._model.predict_proba(X), dtype=np.float64)
