"""Functions on arrays as torch operators."""

from collections.abc import Callable
from typing import Any

import torch

_LIBRARY = torch.library.Library("nearwise", "FRAGMENT")


def operator(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Register a function as the operator ``nearwise::name``, opaque to torch.compile.

    Like `torch.library.custom_op`, on all devices and for functions that change no argument. But
    the first call does not load torch's compiler, which takes seconds and 70 MiB.
    """

    def make(function: Callable[..., Any]) -> Any:
        _LIBRARY.define(name + torch.library.infer_schema(function, mutates_args=()))
        _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        return getattr(torch.ops.nearwise, name).default

    return make
