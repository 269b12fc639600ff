"""Devices by name, and what is fast on them."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def choose_device(name: str | torch.device) -> torch.device:
    """Return the device of a name, if it is available.

    Raises ValueError if torch has no such device, or it is not available.

    Parameters
    ----------
    name : str or torch.device
        "cpu", "cuda", "cuda:1", "mps"; "auto" is CUDA where there is a GPU, else the CPU.
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
    """Whether a device multiplies in bfloat16 faster than in float32, by its maker's data."""
    if torch.device(name).type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # Not there in every version of torch, nor on every processor.
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(found() for found in (getattr(torch.cpu, name, None) for name in names) if found)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h


@contextmanager
def keeping_freed_memory() -> Iterator[None]:
    """Let the C library keep large blocks that are freed inside, where it is glibc.

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
