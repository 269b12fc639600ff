"""Going on in smaller pieces where a device runs out of memory."""

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that a device, or the machine, is out of memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # MPS and the CPU's allocator raise plain RuntimeErrors.
    words = ("out of memory", "DefaultCPUAllocator", "not enough memory")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def release_memory() -> None:
    """Give cached blocks of the accelerator back, so that a smaller piece can have them."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()
