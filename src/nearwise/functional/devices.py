"""Devices by name."""

import torch


def choose_device(name: str | torch.device) -> torch.device:
    """Device of a name, if it is there.

    Parameters
    ----------
    name : str or torch.device
        "cpu", "cuda", "cuda:1", "mps"; "auto" is CUDA where there is a GPU, else the CPU.

    Raises
    ------
    ValueError
        If torch knows no such device, or it is not there.
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
        raise ValueError(f'device={str(device)!r} is not there. Use "auto" or "cpu".')
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device={str(device)!r} is not there: the last GPU is "
            f"cuda:{torch.cuda.device_count() - 1}."
        )
    return device
