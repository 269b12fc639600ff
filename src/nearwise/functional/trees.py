"""Decision trees as flat arrays: checked once, walked by compiled loops.

The nodes of all trees of an ensemble stand in one array, tree after tree. A child always has a
larger number than its parent and lies in the same tree, so that every walk ends: `check_nodes`
refuses anything else, which makes arrays from an untrusted file safe to walk.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearwise.functional.kernels import compiled

CODES = 256  # category codes that a split by value can tell apart: 0 to 255
_WORDS = CODES // 32


def check_nodes(
    roots: NDArray[Any],
    left: NDArray[Any],
    right: NDArray[Any],
    feature: NDArray[Any],
    n_features: int,
    n_leaves: int,
) -> None:
    """Refuse trees whose walk could leave its arrays or never end.

    `roots` (n_trees,) are the numbers of the first nodes, ascending from 0. A leaf has -1 on the
    left and its leaf number on the right. Raises ValueError if a tree is empty, a child is not
    larger than its parent or lies in another tree, a feature or leaf number is out of range, or the
    arrays differ in length.
    """
    n_nodes = len(left)
    if not len(right) == len(feature) == n_nodes:
        raise ValueError("the arrays of nodes differ in length")
    if not len(roots) or roots[0] != 0 or (np.diff(roots, append=n_nodes) < 1).any():
        raise ValueError("the first nodes of the trees do not ascend from 0")
    number = np.arange(n_nodes)
    end = np.repeat(np.append(roots[1:], n_nodes), np.diff(roots, append=n_nodes))
    leaf = left == -1
    for child in (left, right):
        if not ((child > number) & (child < end))[~leaf].all():
            raise ValueError("a child is not a later node of the same tree")
    if not ((feature >= 0) & (feature < n_features))[~leaf].all():
        raise ValueError(f"a node splits by a column that is none of the {n_features}")
    if not ((right >= 0) & (right < n_leaves))[leaf].all():
        raise ValueError(f"a leaf is none of the {n_leaves} that have values")


@compiled
def add_leaf_shares(  # type: ignore[no-untyped-def]
    rows, roots, left, right, feature, threshold, start, classes, shares, out
):
    """Add to `out` (n, C) the class shares of the leaves that `rows` (n, F) reach, tree by tree.

    The shares of leaf i are ``shares[start[i]:start[i + 1]]``, of the classes at these places.
    """
    for tree in range(roots.shape[0]):
        for i in range(rows.shape[0]):
            node = roots[tree]
            while left[node] >= 0:
                go_left = rows[i, feature[node]] <= threshold[node]
                node = left[node] if go_left else right[node]
            leaf = right[node]
            for at in range(start[leaf], start[leaf + 1]):
                out[i, classes[at]] += shares[at]


@compiled
def add_leaf_values(  # type: ignore[no-untyped-def]
    rows, roots, left, right, feature, threshold, missing_left, left_codes, codes, values, out
):
    """Add to `out` (n, K) the values of the leaves that `rows` (n, F) reach.

    Tree t adds to column t modulo K. Where ``left_codes[node] >= 0`` the node splits by category:
    codes whose bit is set in ``codes[left_codes[node]]`` go left. NaN goes where `missing_left`
    says.
    """
    n_columns = out.shape[1]
    for tree in range(roots.shape[0]):
        for i in range(rows.shape[0]):
            node = roots[tree]
            while left[node] >= 0:
                value = rows[i, feature[node]]
                if np.isnan(value):
                    go_left = missing_left[node] != 0
                elif left_codes[node] >= 0:
                    if value < 0 or value >= 256:
                        go_left = missing_left[node] != 0
                    else:
                        code = int(value)
                        word = codes[left_codes[node], code >> 5]
                        go_left = (word >> np.uint32(code & 31)) & np.uint32(1) != 0
                else:
                    go_left = value <= threshold[node]
                node = left[node] if go_left else right[node]
            out[i, tree % n_columns] += values[right[node]]


def pack_codes(is_left: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Pack flags (n, 256) into the bits that `add_leaf_values` reads, uint32 (n, 8)."""
    bits = is_left.reshape(-1, _WORDS, 32).astype(np.uint32)
    packed: NDArray[np.uint32] = (bits << np.arange(32, dtype=np.uint32)).sum(2, dtype=np.uint32)
    return packed


def unpack_codes(words: NDArray[Any]) -> NDArray[np.bool_]:
    """Undo `pack_codes`: words (n, 8) to flags (n, 256)."""
    bits = words.astype(np.uint32)[:, :, None] >> np.arange(32, dtype=np.uint32) & np.uint32(1)
    return bits.astype(bool).reshape(len(words), CODES)


def round_down(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Give the largest float32 that is not above each value.

    A float32 is at most a float64 threshold exactly where it is at most the threshold so rounded.
    """
    rounded = values.astype(np.float32)
    below = np.nextafter(rounded, np.float32(-np.inf))
    return np.where(rounded.astype(np.float64) > values, below, rounded).astype(np.float32)
