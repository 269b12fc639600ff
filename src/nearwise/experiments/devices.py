"""Devices by name."""

import torch


def choose_device(name: str) -> torch.device:
    """Device by name; "auto" takes CUDA where it is there, else the CPU."""
    has_mps = torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda", "mps"):
        raise ValueError(f"device={name!r} is not one of auto, cpu, cuda, mps.")
    if (name == "cuda" and not torch.cuda.is_available()) or (name == "mps" and not has_mps):
        raise ValueError(f"device={name!r} is not there. Pass device='auto' or 'cpu'.")
    return torch.device(name)
