"""Prediction sets label by label, as the papers write them."""

import math


def score(proba, label, method, penalty=0.0, free=0, draw=1.0):
    """Nonconformity of one label of one row."""
    if method == "lac":
        return 1.0 - proba[label]
    order = sorted(range(len(proba)), key=lambda c: (-proba[c], c))
    rank = order.index(label)
    total = sum(proba[c] for c in order[: rank + 1]) - draw * proba[label]
    return total + (penalty * max(0, rank + 1 - free) if method == "raps" else 0.0)


def split_set(judged, asked, confidence):
    """Labels whose score is at most the quantile of the calibration rows' scores."""
    rank = math.ceil((len(judged) + 1) * confidence - 1e-9)
    if rank > len(judged):
        return [True] * len(asked)
    quantile = sorted(judged)[rank - 1]
    return [one <= quantile for one in asked]
