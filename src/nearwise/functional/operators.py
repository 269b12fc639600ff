"""Functions on arrays as operators of torch."""

from collections.abc import Callable
from typing import Any

import torch

_LIBRARY = torch.library.Library("nearwise", "FRAGMENT")


def operator(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Make a function the operator ``nearwise::name``, which torch.compile takes as it is.

    Like `torch.library.custom_op`, on all devices and for functions that change no argument. But
    its first call does not load torch's compiler, which takes seconds and 70 MiB.
    """

    def make(function: Callable[..., Any]) -> Any:
        _LIBRARY.define(name + torch.library.infer_schema(function, mutates_args=()))
        _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        return getattr(torch.ops.nearwise, name).default

    return make
