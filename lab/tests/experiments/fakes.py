"""Small data sets and classifiers that stand in for slow ones."""

from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pandas as pd
from nearwise_lab.experiments import Method
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.naive_bayes import GaussianNB

from nearwise.data import Dataset
from nearwise.data.tables.numeric_columns import Written
from nearwise.estimators import FitReport
from nearwise.estimators.uncertainty.explain import Parts

Explanation = namedtuple("Explanation", "label proba null_mass neighbors")
Neighbor = namedtuple("Neighbor", "id label distance weight proba_without row")


def blobs(name="blobs", n=90, n_classes=3, spread=1.0, seed=0) -> Dataset:
    rng = np.random.default_rng(seed)
    codes = np.arange(n) % n_classes
    centers = rng.normal(size=(n_classes, 4)) * 3
    x = centers[codes] + spread * rng.normal(size=(n, 4))
    labels = np.array(["ant", "bee", "cat", "dog"])[codes]
    frame = pd.DataFrame(x, columns=["a", "b", "c", "d"])
    return Dataset(name, frame, labels, "animal", "table", "made by a test")


def mixed_table(n=120, seed=0) -> Dataset:
    """Numbers, text, a boolean, missing values of both kinds, text labels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    color = rng.choice(["red", "green", "blue"], size=n).astype(object)
    y = np.where(x + (color == "red") + 0.3 * rng.normal(size=n) > 0.4, "yes", "no")
    frame = pd.DataFrame(
        {"x": x, "noise": rng.normal(size=n), "color": color, "flag": rng.random(n) < 0.5}
    )
    frame.loc[::7, "x"] = np.nan
    frame.loc[::9, "color"] = None
    return Dataset("mixed", frame, y, "answer", "table", "made by a test")


class FakeAttention(ClassifierMixin, BaseEstimator):
    """Naive Bayes with the extra methods of AttnKNNClassifier."""

    def fit(self, X, y):
        self.inner_ = GaussianNB().fit(X, y)
        self.classes_ = self.inner_.classes_
        self.memory_ = X, y
        self.n_neighbors_ = 3
        history = [
            {"stage": "head", "member": 0, "epoch": e, "train_loss": 1 / e, "held_out_nll": 2 / e}
            for e in range(1, 4)
        ]
        choice = {"embedder": "identity"}
        self.report_ = FitReport({}, [], Written(), choice, history, 0.5, 1.5, "cross-fit")
        return self

    def predict_proba(self, X):
        return self.inner_.predict_proba(X)

    def predict(self, X):
        return self.inner_.predict(X)

    def query(self, X):
        proba = self.predict_proba(X)
        uniform = np.full_like(proba, 1 / proba.shape[1])
        null_mass = np.full(len(X), 0.25)
        return SimpleNamespace(parts=Parts(proba, 0.5 * proba + 0.5 * uniform, uniform, null_mass))

    def explain(self, X):
        rows, labels = self.memory_
        return [
            Explanation(
                label=self.classes_[0],
                proba={},
                null_mass=0.25,
                neighbors=[
                    Neighbor(i, labels[i], 0.1 * (i + 1), 0.75 / 3, None, rows.iloc[i].to_dict())
                    for i in range(3)
                ],
            )
            for _ in range(len(X))
        ]


class Broken(ClassifierMixin, BaseEstimator):
    def fit(self, X, y):
        raise RuntimeError("this method never works")


class CountingBayes(GaussianNB):
    """Naive Bayes that notes (name, seed) of every fit in the list that it is given."""

    fitted_ = None

    def fit(self, X, y, sample_weight=None):
        if self.fitted_ is not None:
            self.fitted_.append((self.name_, self.seed_))
        return super().fit(X, y, sample_weight)


def bayes(name="bayes", fitted=None) -> Method:
    """A quick method; `fitted` collects (seed) of every fit."""

    def build(context):
        model = CountingBayes()
        model.name_, model.seed_, model.fitted_ = name, context.seed, fitted
        return model

    return Method(name, build, "linear", "naive Bayes")


def attention(name="attention") -> Method:
    return Method(name, lambda context: FakeAttention(), "attention", "stands in")


def broken(name="broken") -> Method:
    return Method(name, lambda context: Broken(), "trees", "always fails")
