"""The null's share is given with every prediction, for tables, embeddings and images, and later."""

import pytest

from tests.classifier.cases import CHEAP, attn_knn, blobs, fitted, logistic
from tests.classifier.image_cases import BRIEF as IMAGES
from tests.classifier.image_cases import patches


def case(kind):
    """Rows, labels, a classifier fitted on them, and further views."""
    if kind == "images":
        X, y = patches()
        return X, y, attn_knn(**IMAGES).fit(X, y), None
    X, y = blobs()
    if kind == "table":
        return X, y, fitted(X, y, estimator=logistic()), None
    views = [X + 0.1]
    settings = {"estimator": "auto", "embedder": "deep", "train": {"epochs": 1}, "cv": 0.3}
    model = attn_knn(**{**CHEAP, **settings})
    return X, y, model.fit(X, y, views=views), views


@pytest.mark.parametrize("kind", ["table", "embeddings", "images"])
def test_share_of_the_null_is_returned_and_shown_and_stays_after_a_change(kind):
    X, y, model, views = case(kind)
    for _ in range(2):
        parts = model.query(X[:5], views=None if views is None else [v[:5] for v in views]).parts
        assert parts.null_mass.shape == (5,)
        assert ((parts.null_mass >= 0) & (parts.null_mass <= 1)).all() and parts.null_mass.any()
        shown = model.explain(X[:5], None, views=None if views is None else [views[0][:5]])
        for row, explanation in enumerate(shown):
            assert explanation.null_mass == pytest.approx(parts.null_mass[row], abs=1e-5)
            weights = sum(neighbor.weight for neighbor in explanation.neighbors)
            assert weights + explanation.null_mass == pytest.approx(1.0, abs=1e-4)
        model.add(X[:3], y[:3], views=None if views is None else [views[0][:3]])
        model.remove([int(model.memory_.ids[10])])
