"""Slow versions of the metrics, straight from their definitions: loops, fractions, quadrature."""

from fractions import Fraction
from itertools import groupby, permutations, product

import numpy as np


def top_label(y, proba):
    """Give the confidence of each row and whether it is right, as lists."""
    predicted = [max(range(len(row)), key=lambda c: (row[c], -c)) for row in proba]
    confidence = [float(row[c]) for row, c in zip(proba, predicted, strict=True)]
    return confidence, [c == label for c, label in zip(predicted, y, strict=True)]


def equal_width_bin(value, n_bins):
    """Bin i holds [i / n_bins, (i + 1) / n_bins); the last bin also holds 1."""
    for i in range(n_bins - 1):
        if i / n_bins <= value < (i + 1) / n_bins:
            return i
    return n_bins - 1


def equal_mass_bin(value, values, n_bins):
    """Find the bin in which the middle rank of the rows tied with `value` falls."""
    below = sum(other < value for other in values)
    tied = sum(other == value for other in values)
    middle = Fraction(2 * below + tied, 2)
    return int(n_bins * middle / len(values))


def binned_error(confidence, outcome, bins):
    """Sum over bins of the share of rows times |mean confidence - mean outcome|."""
    total = 0.0
    for b in set(bins):
        rows = [i for i, other in enumerate(bins) if other == b]
        gap = np.mean([confidence[i] for i in rows]) - np.mean([outcome[i] for i in rows])
        total += len(rows) / len(bins) * abs(gap)
    return total


def ece(y, proba, n_bins=15):
    """Top-label calibration error in equal-width bins."""
    confidence, correct = top_label(y, proba)
    return binned_error(confidence, correct, [equal_width_bin(c, n_bins) for c in confidence])


def equal_mass_ece(y, proba, n_bins=15):
    """Top-label calibration error in equal-mass bins that split no tie."""
    confidence, correct = top_label(y, proba)
    bins = [equal_mass_bin(c, confidence, n_bins) for c in confidence]
    return binned_error(confidence, correct, bins)


def classwise_ece(y, proba, n_bins=15):
    """Mean over classes of each column's calibration error."""
    errors = []
    for c in range(len(proba[0])):
        column = [float(row[c]) for row in proba]
        bins = [equal_width_bin(value, n_bins) for value in column]
        errors.append(binned_error(column, [label == c for label in y], bins))
    return float(np.mean(errors))


def tie_orders(confidence):
    """Yield every order of the rows, surest first, that the confidences allow."""
    rows = sorted(range(len(confidence)), key=lambda i: -confidence[i])
    groups = [list(g) for _, g in groupby(rows, key=lambda i: confidence[i])]
    for parts in product(*(permutations(g) for g in groups)):
        yield [i for part in parts for i in part]


def risks(confidence, correct):
    """Selective risk at each coverage, averaged over every order of tied rows."""
    curves = []
    for order in tie_orders(confidence):
        wrong = np.cumsum([not correct[i] for i in order])
        curves.append(wrong / np.arange(1, len(order) + 1))
    return np.mean(curves, axis=0)


def aurc(confidence, correct):
    """Mean selective risk over coverages, averaged over every order of tied rows."""
    return float(risks(confidence, correct).mean())


def augrc(confidence, correct):
    """Trapezoids under (coverage, answered and wrong), averaged over orders of tied rows."""
    n, areas = len(confidence), []
    for order in tie_orders(confidence):
        wrong = np.concatenate([[0], np.cumsum([not correct[i] for i in order])]) / n
        areas.append(sum((wrong[i] + wrong[i + 1]) / 2 / n for i in range(n)))
    return float(np.mean(areas))


def smooth_error(confidence, correct, width, n_points=2001):
    """Integrate |mean residual smoothed by a Gaussian reflected at 0 and 1|, by quadrature."""
    t = np.linspace(0.0, 1.0, n_points)[:, None]
    f = np.asarray(confidence, float)[None, :]
    residual = f[0] - np.asarray(correct, float)
    kernel = np.zeros((n_points, f.shape[1]))
    for image in range(-8, 9, 2):
        for source in (f + image, image - f):
            kernel += np.exp(-0.5 * ((t - source) / width) ** 2)
    kernel /= np.sqrt(2 * np.pi) * width
    density = np.abs(kernel @ residual / f.shape[1])
    return float(((density[1:] + density[:-1]) / 2).sum() / (n_points - 1))


def smooth_ece(confidence, correct, steps=13):
    """Find the width that equals the error at that width, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(steps):
        width = (low + high) / 2
        if smooth_error(confidence, correct, width) > width:
            low = width
        else:
            high = width
    return (low + high) / 2
