"""Checkpoints: a killed run resumes and ends with the result of an uninterrupted one."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearwise.memory.gate import taken_apart
from nearwise.memory.store import MANIFEST, read_folder, write_folder

KIND = "nearwise-training-checkpoint"
FORMAT_VERSION = 1


@dataclass
class TrainingState:
    """Progress of a run.

    `epoch` counts finished epochs, `waited` the evaluations since the best one; lower monitored
    values are better. `best` holds the weights of `best_epoch` (0 is the untrained model), and is
    empty without a monitored value.
    """

    epoch: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    monitored: list[float] = field(default_factory=list)
    best_epoch: int = 0
    best_value: float | None = None
    waited: int = 0
    finished: bool = False
    best: dict[str, Tensor] = field(default_factory=dict)


def content_hash(settings: Any, tensors: Mapping[str, Tensor | None]) -> str:
    """Hash JSON-ready settings, and names and contents of tensors."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for name, tensor in tensors.items():
        digest.update(name.encode())
        if tensor is not None:
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            plain = tensor.detach().cpu().contiguous().view(-1)
            digest.update(plain.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def save_checkpoint(
    path: str | Path,
    fingerprint: str,
    state: TrainingState,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
    extra: dict[str, Tensor],
) -> None:
    """Write the whole state of a run to the folder `path`, replacing the former one atomically.

    Network, optimizer and generator are in their state at the end of an epoch; torch's global
    random states are saved too. `fingerprint` is a hash of all inputs of the run, `extra` holds
    further tensors of the loop, such as cached keys.
    """
    optimizer_state = optimizer.state_dict()["state"]
    tensors = {
        **_prefixed("model", network.state_dict()),
        **_prefixed("best", state.best),
        **_prefixed("extra", extra),
        **{
            f"optimizer/{index}/{name}": torch.as_tensor(value)
            for index, values in optimizer_state.items()
            for name, value in values.items()
        },
        "random/generator": generator.get_state(),
        "random/torch": torch.get_rng_state(),
    }
    device = next(network.parameters()).device
    if device.type == "cuda":
        tensors["random/cuda"] = torch.cuda.get_rng_state(device)
    plain = asdict(state)
    del plain["best"]
    write_folder(
        Path(path),
        kind=KIND,
        format_version=FORMAT_VERSION,
        tensors={name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
        meta={"fingerprint": fingerprint, "state": plain},
    )


def load_checkpoint(
    path: str | Path,
    fingerprint: str,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
) -> tuple[TrainingState, dict[str, Tensor]] | None:
    """Restore a run from its last checkpoint; None if there is none.

    Network, optimizer, generator and torch's global random states are set in place. StoreError if
    the folder is torn, foreign, newer than this version or holds something else, ValueError if it
    belongs to a run on other data or with other settings.
    """
    path = Path(path)
    if not (path / MANIFEST).exists():  # no checkpoint yet, or killed within the first write
        return None
    folder = read_folder(path, kind=KIND, newest_version=FORMAT_VERSION)
    if folder.meta.get("fingerprint") != fingerprint:
        raise ValueError(
            f"The checkpoint in {path} belongs to another run: data, settings, seed or "
            "the version of nearwise differ. Delete the folder to start again, or name another one."
        )
    with taken_apart(path):
        device = next(network.parameters()).device
        groups = _grouped(folder.tensors)
        network.load_state_dict(groups["model"])
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in groups.get("optimizer", {}).items():
            index, entry = name.split("/", 1)
            moments.setdefault(int(index), {})[entry] = tensor
        optimizer.load_state_dict(
            {"state": moments, "param_groups": optimizer.state_dict()["param_groups"]}
        )
        generator.set_state(groups["random"]["generator"])
        torch.set_rng_state(groups["random"]["torch"])
        if device.type == "cuda" and "cuda" in groups["random"]:
            torch.cuda.set_rng_state(groups["random"]["cuda"], device)
        state = TrainingState(**folder.meta["state"])
        state.best = {name: tensor.to(device) for name, tensor in groups.get("best", {}).items()}
        extra = {name: tensor.to(device) for name, tensor in groups.get("extra", {}).items()}
    return state, extra


def _prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def _grouped(tensors: dict[str, Any]) -> dict[str, dict[str, Tensor]]:
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        prefix, rest = name.split("/", 1)
        groups.setdefault(prefix, {})[rest] = torch.as_tensor(tensor)
    return groups
