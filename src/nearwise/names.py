"""Names in messages: suggestions for misspelt names, and short lists."""

from collections.abc import Collection, Iterable, Sequence
from difflib import SequenceMatcher

_LIKE = 0.55  # least share of common letters of a misspelt name
_LONGEST = 60  # characters of a name in a list
_FEWEST = 2  # least letters of a prefix, or a part, of a name
_MANY = 64  # columns of an embedding without names


def nearest_names(name: object, known: Iterable[object], *, n: int = 1) -> list[str]:
    """Return at most `n` known names similar to a misspelt one, best first.

    Names that begin with it come first, then names that contain it, then names that differ by a few
    letters; ties by similarity. Case, blanks, hyphens and underscores are ignored.

    Examples
    --------
    >>> nearest_names("KNN", ["Kvt", "KNNAttention", "SparseKNN"], n=2)
    ['KNNAttention', 'SparseKNN']
    """
    sought = _folded(name)
    ranked = []
    for order, candidate in enumerate(dict.fromkeys(map(str, known))):
        folded = _folded(candidate)
        alike = SequenceMatcher(None, folded, sought).ratio()
        says_enough = len(sought) >= _FEWEST
        if says_enough and folded.startswith(sought):
            ranked.append((0, -alike, order, candidate))
        elif says_enough and sought in folded:
            ranked.append((1, -alike, order, candidate))
        elif alike >= _LIKE:
            ranked.append((2, -alike, order, candidate))
    return [candidate for *_, candidate in sorted(ranked)[:n]]


def did_you_mean(name: object, known: Iterable[object], *, n: int = 1) -> str:
    """Return a suggestion of the nearest known names; empty if none is similar.

    Examples
    --------
    >>> did_you_mean("epoch", ["lr", "epochs"])
    " Did you mean 'epochs'?"
    """
    near = nearest_names(name, known, n=n)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def spelled_alike(names: Iterable[object], known: Sequence[object]) -> dict[str, str]:
    """Map each unknown text that differs from another only in case or blanks to that one.

    Examples
    --------
    >>> spelled_alike(["Yes ", "no", "maybe"], ["yes", "no"])
    {'Yes ': 'yes'}
    """
    present = set(known)
    first: dict[str, str] = {}
    found = {}
    for name in (*known, *(name for name in names if name not in present)):
        if isinstance(name, str):
            other = first.setdefault(" ".join(name.casefold().split()), name)
            if other != name and name not in present:
                found[name] = other
    return found


def listed(names: Sequence[object], *, n: int = 5) -> str:
    """Return the first names in quotes, and the number of the others; long names are cut.

    Examples
    --------
    >>> listed(["a", "b", "c"], n=2)
    "'a', 'b' and 1 more"
    """
    shown = ", ".join(repr(str(name)[:_LONGEST]) for name in names[:n])
    return shown if len(names) <= n else f"{shown} and {len(names) - n} more"


def _folded(name: object) -> str:
    return str(name).casefold().translate(str.maketrans("", "", "-_ "))


def are_positions(names: Collection[str]) -> bool:
    """Whether columns are the numbers of an embedding: at least 64, named x0, x1, ... by position.

    Examples
    --------
    >>> are_positions([f"x{at}" for at in range(384)]), are_positions(["x0", "x1"])
    (True, False)
    """
    return len(names) >= _MANY and all(name == f"x{at}" for at, name in enumerate(names))
