"""Devices by name, and their fast options."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def choose_device(name: str | torch.device) -> torch.device:
    """Return the torch device of a name.

    Raises ValueError if torch has no such device, or it is not available.

    Parameters
    ----------
    name : str or torch.device
        "cpu", "cuda", "cuda:1", "mps"; "auto" is CUDA if there is a GPU, else the CPU.
    """
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if isinstance(name, str) and name == "auto":
        return torch.device("cuda" if cuda else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise ValueError(
            f'device={name!r} is not known. Use "auto", "cpu", "cuda", "cuda:0" or "mps".'
        ) from None
    if (device.type == "cuda" and not cuda) or (device.type == "mps" and not mps):
        raise ValueError(f'device={str(device)!r} is not available. Use "auto" or "cpu".')
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device={str(device)!r} is not available: the last GPU is "
            f"cuda:{torch.cuda.device_count() - 1}."
        )
    return device


def fast_bfloat16(name: str | torch.device) -> bool:
    """Whether a device multiplies faster in bfloat16 than in float32, by the maker's data."""
    if torch.device(name).type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # Missing in some versions of torch and for some processors.
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(found() for found in (getattr(torch.cpu, name, None) for name in names) if found)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h


@contextmanager
def keeping_freed_memory() -> Iterator[None]:
    """Make glibc keep large freed blocks within the context.

    Otherwise it returns them to the system, and every training step pays for new pages: a
    quarter of the time of a convolutional network on a CPU.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        yield
        return
    mallopt(_MMAP_THRESHOLD, 2**30)
    mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        mallopt(_MMAP_THRESHOLD, 2**25)  # the largest that glibc chooses by itself
        mallopt(_TRIM_THRESHOLD, 2**26)
