"""Geometry of features by loops over rows and pairs."""

import itertools
import math

import numpy as np


def cosine_distance(a, b):
    return 1 - float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


def euclidean(a, b):
    return math.sqrt(float(((a - b) ** 2).sum()))


def neighbor_lists(X, k, distance):
    """Positions of the k nearest other rows; the lowest position wins a tie."""
    lists = []
    for i in range(len(X)):
        others = [j for j in range(len(X)) if j != i]
        lists.append(sorted(others, key=lambda j: (np.float32(distance(X[i], X[j])), j))[:k])
    return lists


def purity(X, y, k, distance):
    lists = neighbor_lists(X, k, distance)
    return np.mean([[y[j] == y[i] for j in own] for i, own in enumerate(lists)])


def overlap(X, Y, k, distance):
    a, b = neighbor_lists(X, k, distance), neighbor_lists(Y, k, distance)
    return np.mean([len(set(i) & set(j)) / k for i, j in zip(a, b, strict=True)])


def hub_counts(X, k, distance):
    lists = neighbor_lists(X, k, distance)
    return np.array([sum(i in own for own in lists) for i in range(len(X))])


def unit(X):
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def class_alignment(X, y):
    Z = unit(X)
    pairs = [(i, j) for i, j in itertools.combinations(range(len(Z)), 2) if y[i] == y[j]]
    return np.mean([((Z[i] - Z[j]) ** 2).sum() for i, j in pairs])


def uniformity(X, t):
    Z = unit(X)
    pairs = itertools.combinations(range(len(Z)), 2)
    return math.log(np.mean([math.exp(-t * ((Z[i] - Z[j]) ** 2).sum()) for i, j in pairs]))


def anisotropy(X):
    Z = unit(X)
    return np.mean([Z[i] @ Z[j] for i, j in itertools.combinations(range(len(Z)), 2)])


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
