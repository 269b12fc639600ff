"""Bagging and a temperature for every peer, as for the library's own classifier."""

from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import KFold, StratifiedKFold

from nearwise_lab.experiments.network import fit_temperature, mean_nll, tempered
from nearwise_lab.experiments.peers.peer import Peer
from nearwise_lab.experiments.preprocess import Table, take_rows

RIDGE = 2.0  # pull of a temperature towards 1, in rows

Opinions = Literal["folds", "folds, refitted", "out-of-bag"]


@dataclass(eq=False, repr=False)
class TemperedBag(Peer):
    """Members that each leave out a fold, and one temperature fitted to out-of-fold predictions.

    Probabilities are the mean of the members', each divided by the temperature that has the lowest
    NLL on rows that a member was not fitted to.

    `member` is unfitted and takes rows and class positions; its `random_state`, where it has one,
    is the seed of its fold. `opinions` says where predictions for the temperature come from, and
    what predicts. "folds": the members of the folds. "folds, refitted": they give the temperature,
    one member that is fitted to all rows predicts. "out-of-bag": one member with
    `oob_decision_function_` does both. Where `stops`, `member.fit` takes the rows of the fold,
    ``X_val`` and ``y_val``, to stop on. Folds are plain where the rarest class has fewer rows than
    there are folds, stratified otherwise.

    `temperature_` is in [1/20, 20], `oof_nll_` the NLL of the predictions for rows left out at that
    temperature, in nats per row; `choice_` has what each member chose, and the temperature.
    """

    member: Any
    opinions: Opinions = "folds"
    stops: bool = True
    n_folds: int = 5
    random_state: int = 0

    def fit(self, X: Table, y: Any) -> Self:
        """Fit the members, then the temperature."""
        labels = self._learn_classes(y)
        self.members_: list[Any] = []
        if self.opinions == "out-of-bag":
            member = self._member(0).fit(X, labels)
            self.members_ = [member]
            unseen = np.asarray(member.oob_decision_function_)
            judged = np.isfinite(unseen).all(axis=1) & (unseen.sum(axis=1) > 0)
        else:
            unseen, judged = self._cross_fit(X, labels)
            if self.opinions == "folds, refitted":
                self.members_ = [self._member(self.n_folds).fit(X, labels)]
        self.temperature_ = 1.0
        if judged.any():
            ridge = RIDGE / int(judged.sum())
            self.temperature_ = fit_temperature(unseen[judged], labels[judged], ridge=ridge)
            self.oof_nll_ = mean_nll(tempered(unseen[judged], self.temperature_), labels[judged])
        made = [getattr(member, "choice_", {}) for member in self.members_]
        chosen: dict[str, Any] = {name: [one[name] for one in made] for name in made[0]}
        self.choice_ = chosen | {"temperature": self.temperature_}
        return self

    def _member(self, number: int) -> Any:
        member = clone(self.member)
        if "random_state" in member.get_params(deep=False):
            member.set_params(random_state=self.random_state + number)
        return member

    def _cross_fit(self, X: Table, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Out-of-fold predictions (n, C), and a mask of rows with a class known in training."""
        kind = StratifiedKFold if np.bincount(labels).min() >= self.n_folds else KFold
        folds = kind(min(self.n_folds, len(labels)), shuffle=True, random_state=self.random_state)
        unseen = np.zeros((len(labels), len(self.classes_)))
        known = np.zeros(len(labels), dtype=bool)
        for number, (rows, held_out) in enumerate(folds.split(np.zeros(len(labels)), labels)):
            useful = held_out[np.isin(labels[held_out], labels[rows])]
            known[useful] = True
            rest = {}
            if self.stops:  # on classes that the member has
                stop = useful if len(useful) else rows
                rest = {"X_val": take_rows(X, stop), "y_val": labels[stop]}
            member = self._member(number).fit(take_rows(X, rows), labels[rows], **rest)
            unseen[held_out] = self._predict(member, take_rows(X, held_out))
            if self.opinions == "folds":
                self.members_.append(member)
        return unseen, known

    def _predict(self, member: Any, X: Table) -> np.ndarray:
        """Probabilities over all classes; 0 for classes that a member lacks."""
        given = np.asarray(member.predict_proba(X), dtype=np.float64)
        proba = np.zeros((len(given), len(self.classes_)))
        proba[:, np.asarray(member.classes_, dtype=np.int64)] = given
        return proba

    def _proba(self, X: Table) -> np.ndarray:
        given = [tempered(self._predict(one, X), self.temperature_) for one in self.members_]
        return np.mean(given, axis=0)
