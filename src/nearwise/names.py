"""Names in messages: the one that a mis-spelt one most likely stands for, and lists of them."""

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

_LIKE = 0.55  # share of common letters from which a name may be a mis-spelt one
_LONGEST = 60  # characters of a name in a list
_FEWEST = 2  # letters that suffice to be the beginning, or a part, of a name


def nearest_names(name: object, known: Iterable[object], *, n: int = 1) -> list[str]:
    """Find at most `n` known names that a wrong one most likely stands for, the best first.

    A name that begins with it comes first, then one that holds it, then one that differs by a few
    letters; among equals the most alike. Case, blanks, hyphens and underscores do not count.

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
    """Suggest the nearest known names; empty where nothing is like `name`.

    Examples
    --------
    >>> did_you_mean("epoch", ["lr", "epochs"])
    " Did you mean 'epochs'?"
    """
    near = nearest_names(name, known, n=n)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def listed(names: Sequence[object], *, n: int = 5) -> str:
    """List the first names in quotes, and say how many more there are; long ones are cut.

    Examples
    --------
    >>> listed(["a", "b", "c"], n=2)
    "'a', 'b' and 1 more"
    """
    shown = ", ".join(repr(str(name)[:_LONGEST]) for name in names[:n])
    return shown if len(names) <= n else f"{shown} and {len(names) - n} more"


def _folded(name: object) -> str:
    return str(name).casefold().translate(str.maketrans("", "", "-_ "))
