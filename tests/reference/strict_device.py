"""An accelerator on the CPU: tensors of a device "strict", which mix with no others.

Values are computed on the CPU. What a GPU refuses is refused here: operations between devices,
indices of a CPU tensor that lie on the device, `.numpy()`. Importing this registers the device with
torch for the whole process, so tests do it in processes of their own.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

NAME = "strict"


class _Module(_DummyBackendModule):
    def get_amp_supported_dtype(self):
        return [torch.bfloat16]


_setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
_DEVICE = torch.device(f"{NAME}:0")
_READ = ("aten::_local_scalar_dense", "aten::equal", "aten::is_same_size")
_INDEXED = ("aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_")


class StrictTensor(torch.Tensor):
    """Wraps a CPU tensor."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=_DEVICE,
        )
        made.inner = inner
        return made

    def __repr__(self):
        return f"StrictTensor({self.inner})"

    def tolist(self):
        return self.inner.tolist()

    def numpy(self, *args, **kwargs):
        raise TypeError(f"can't convert a tensor on {NAME} to numpy; call .cpu() first")

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


@contextmanager
def strict_device() -> Iterator[str]:
    """Make the device usable; yields its name."""
    with _Mode():
        yield NAME


def _plain(value):
    return value.inner if isinstance(value, StrictTensor) else value


def _strict(value):
    plain = isinstance(value, torch.Tensor) and not isinstance(value, StrictTensor)
    return StrictTensor(value) if plain else value


def _is_here(device) -> bool:
    return device is not None and torch.device(device).type == NAME


def _run(func, args, kwargs):
    name = func._schema.name
    if name == "aten::_to_copy":
        return _moved(func, args, dict(kwargs))
    if name == "aten::copy_":
        _plain(args[0]).copy_(_plain(args[1]))
        return args[0]
    if name in _READ:
        return func(*tree_map(_plain, args), **kwargs)
    given = [a for a in tree_flatten((args, kwargs))[0] if isinstance(a, torch.Tensor)]
    ours = [isinstance(a, StrictTensor) for a in given]
    _refuse_mixed(name, args, given, ours)
    options = {k: v for k, v in tree_map(_plain, kwargs).items() if k != "device"}
    out = func(*tree_map(_plain, args), **options)
    if out is None:
        return None
    if any(ours) and name.endswith("_") and not name.endswith("__"):  # __rshift__ changes nothing
        return args[0]
    return tree_map(_strict, out) if any(ours) or _is_here(kwargs.get("device")) else out


def _moved(func, args, options):
    device = options.pop("device", None)
    source = _plain(args[0])
    out = func(source, **options)
    here = isinstance(args[0], StrictTensor) if device is None else _is_here(device)
    return StrictTensor(out) if here else out


def _refuse_mixed(name, args, given, ours):
    if name in _INDEXED:
        places = [a for a in tree_flatten(args[1])[0] if isinstance(a, torch.Tensor)]
        if not isinstance(args[0], StrictTensor) and any(
            isinstance(a, StrictTensor) for a in places
        ):
            raise RuntimeError(f"{name}: indices of a CPU tensor must lie on the CPU")
        given = [args[0], *args[2:3]]
        ours = [isinstance(a, StrictTensor) for a in given]
    shapes = [tuple(a.shape) for a in given if isinstance(a, torch.Tensor)]
    apart = [a for a, our in zip(given, ours, strict=True) if not our]
    if any(ours) and any(isinstance(a, torch.Tensor) and a.ndim for a in apart):
        raise RuntimeError(f"{name}: expected all tensors on the same device, of shapes {shapes}")


def _copy_from(source, target, non_blocking=False):
    _plain(target).copy_(_plain(source))
    return target


# torch.tensor(..., device=...) and the like do not pass through modes.
_LIBRARY = torch.library.Library("aten", "IMPL")
_LIBRARY.impl(
    "empty_strided",
    lambda size, stride, *, dtype=None, **_: StrictTensor(
        torch.empty_strided(size, stride, dtype=dtype)
    ),
    "PrivateUse1",
)
_LIBRARY.impl(
    "empty.memory_format",
    lambda size, *, dtype=None, **_: StrictTensor(torch.empty(size, dtype=dtype)),
    "PrivateUse1",
)
_LIBRARY.impl("_copy_from", _copy_from, "PrivateUse1")
