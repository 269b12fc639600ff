"""A user's base estimator in a model folder, written and read with skops.

Types that skops does not trust by default are read only if the user names them. So are types with
parts in C (trees, support vectors, k-d trees): a forged file could crash the process.
"""

import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

from nearwise.conditions import require_extra

# Pure Python types in scikit-learn's models that skops does not list as trusted.
TRUSTED = (
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
)
_IN_C = "sklearn.svm."  # trusted by skops, but their arrays reach C code without a check
_LEAST_ALLOWED, _MOST_PACKED = 2**26, 200  # unpacked bytes always allowed, and largest ratio


def _skops() -> Any:
    """Import skops; ImportError names the extra to install."""
    require_extra("A saved model with a base of your own", "own-base", "skops")
    import skops.io

    return skops.io


def dump_model(model: Any) -> bytes:
    """Write a scikit-learn model with skops, compressed."""
    blob: bytes = _skops().dumps(model, compression=zipfile.ZIP_DEFLATED, compresslevel=1)
    return blob


def untrusted_types(blob: bytes) -> list[str]:
    """Sorted names of the types that `load_model` reads only if the caller trusts them.

    ValueError if the bytes are not from `dump_model`, or would unpack to a far larger size.
    """
    _refuse_bomb(blob)
    in_c = {name for name in _types(blob) if name.startswith(_IN_C)}
    return sorted({*_skops().get_untrusted_types(data=blob), *in_c} - {*TRUSTED})


def load_model(blob: bytes, trusted: Sequence[str] = ()) -> Any:
    """Read a model; UntrustedTypesError unless skops or the caller trusts all of its types."""
    unknown = [name for name in untrusted_types(blob) if name not in trusted]
    if unknown:
        raise UntrustedTypesError(unknown)
    return _skops().loads(blob, trusted=[*TRUSTED, *trusted])


class UntrustedTypesError(ValueError):
    """Error for a stored estimator with types (`names`) that the caller does not trust."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(
            f"The saved base holds the types {names}, which are not trusted. If you know where "
            f"the folder comes from, name them: AttnKNNClassifier.load(folder, trusted={names})."
        )
        self.names = names


def _refuse_bomb(blob: bytes) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(blob)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except zipfile.BadZipFile as error:
        raise ValueError(f"it was not written with skops ({error})") from None
    if unpacked > max(_LEAST_ALLOWED, _MOST_PACKED * len(blob)):
        raise ValueError(f"its {len(blob)} bytes would unpack to {unpacked}")


def _types(blob: bytes) -> Iterator[str]:
    """Names of all types in a skops archive."""
    with zipfile.ZipFile(io.BytesIO(blob)) as archive:
        waiting = [json.loads(archive.read("schema.json"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if isinstance(node.get("__module__"), str) and isinstance(node.get("__class__"), str):
                yield f"{node['__module__']}.{node['__class__']}"
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
