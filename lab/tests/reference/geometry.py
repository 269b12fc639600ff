"""Geometry of features by loops over rows and pairs."""

import math

import numpy as np


def cosine_distance(a, b):
    return 1 - float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


def neighbor_lists(X, k):
    """Positions of the k nearest other rows; the lowest position wins a tie."""
    lists = []
    for i in range(len(X)):
        others = [j for j in range(len(X)) if j != i]
        lists.append(sorted(others, key=lambda j: (np.float32(cosine_distance(X[i], X[j])), j))[:k])
    return lists


def purity(X, y, k):
    return np.mean([[y[j] == y[i] for j in own] for i, own in enumerate(neighbor_lists(X, k))])


def overlap(X, Y, k):
    a, b = neighbor_lists(X, k), neighbor_lists(Y, k)
    return np.mean([len(set(i) & set(j)) / k for i, j in zip(a, b, strict=True)])


def plain_cka(X, Y):
    """Kornblith et al., eq. 2 and 3, with the centering matrix written out."""
    n = len(X)
    H = np.eye(n) - np.ones((n, n)) / n
    K, L = X @ X.T, Y @ Y.T

    def hsic(A, B):
        return np.trace(A @ H @ B @ H)

    return hsic(K, L) / math.sqrt(hsic(K, K) * hsic(L, L))


def debiased_cka(X, Y):
    """Song et al., eq. 4, on Gram matrices of features that are not centered."""
    n = len(X)
    K, L = X @ X.T, Y @ Y.T
    np.fill_diagonal(K, 0)
    np.fill_diagonal(L, 0)
    one = np.ones(n)

    def hsic(A, B):
        whole = (one @ A @ one) * (one @ B @ one) / ((n - 1) * (n - 2))
        return np.trace(A @ B) + whole - 2 / (n - 2) * (one @ A @ B @ one)

    return hsic(K, L) / math.sqrt(hsic(K, K) * hsic(L, L))
