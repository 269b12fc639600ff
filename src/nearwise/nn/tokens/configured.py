"""Layer classes with preset options, for models that make layers from a class alone."""

import copyreg
import inspect
from abc import ABCMeta
from collections.abc import Iterable
from typing import Any

from nearwise.names import did_you_mean

_made: list["_Configured"] = []


class _Configured(ABCMeta):
    """Metaclass of preset classes; they are pickled by base class and options."""

    base: type
    options: dict[str, Any]


def check_options(cls: type, options: Iterable[str], known: set[str]) -> None:
    """Raise TypeError for an option that a layer does not have."""
    for name in options:
        if name not in known:
            raise TypeError(f"{cls.__name__} has no option {name!r}.{did_you_mean(name, known)}")


def configured(cls: type, options: dict[str, Any], known: set[str]) -> Any:
    """Return the subclass of `cls` with these options preset.

    The same options give the same class, so that pickles and copies have the class of the original.
    Raises TypeError if an option is not known.
    """
    check_options(cls, options, known)
    if isinstance(cls, _Configured):
        options = {**cls.options, **options}
        cls = cls.base
    for made in _made:
        if made.base is cls and made.options == options:
            return made

    def __init__(self: Any, dim: int, *args: Any, **given: Any) -> None:
        for name, value in options.items():
            if given.setdefault(name, value) != value:
                raise ValueError(
                    f"{cls.__name__} was configured with {name}={value!r}, but what makes it "
                    f"passes {name}={given[name]!r}. Set it in one place."
                )
        cls.__init__(self, dim, *args, **given)  # type: ignore[misc]

    namespace: dict[str, Any] = {"__init__": __init__, "__doc__": cls.__doc__, "base": cls}
    namespace |= {"options": options, "__signature__": inspect.signature(cls)}
    namespace |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    _made.append(_Configured(cls.__name__, (cls,), namespace))
    return _made[-1]


def _again(cls: Any, options: dict[str, Any]) -> Any:
    return cls.configured(**options)


copyreg.pickle(_Configured, lambda made: (_again, (made.base, made.options)))
