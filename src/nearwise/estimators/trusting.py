"""A fitted classifier says how far to trust it: it abstains, gives sets, and knows strangers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from sklearn.utils import check_random_state

from nearwise.estimators.asking import AnswersQueries
from nearwise.estimators.blocks import view_blocks
from nearwise.estimators.conformal import (
    Method,
    check_confidence,
    check_enough,
    check_method,
    check_penalty,
    nonconformity,
    p_values,
    sets_from_p_values,
)
from nearwise.estimators.embedding import AnyRows
from nearwise.estimators.evidence import (
    JudgedRows,
    Remoteness,
    judged_rows,
    member_probabilities,
    remoteness_of_new,
)
from nearwise.estimators.explain import Explanation, Parts, make_parts
from nearwise.estimators.selective import (
    Judge,
    Score,
    Selection,
    check_request,
    guarantee,
)
from nearwise.estimators.shared import SharedState
from nearwise.estimators.strangers import (
    StrangerScore,
    check_stranger_score,
    stranger_p_values,
    stranger_scores,
)


class KnowsItsLimits(AnswersQueries):
    """`predict_selective`, `predict_set`, `stranger_score` and `stranger_p_value`.

    All are judged by rows whose labels their own predictions have not seen: the training rows,
    each without itself (a random 10,000 of more), or the rows that were held out once. They ask
    the memory as it is, so `add`, `remove` and `relabel` change what they say.
    """

    def explain(
        self,
        X: Any = None,
        n_neighbors: int | None = 10,
        *,
        trust: bool = False,
        views: Sequence[Any] | None = None,
    ) -> list[Explanation]:
        """Show the neighbors behind each prediction.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), optional
            None means the training rows, each without itself (rows added later are left out).
        n_neighbors : int or None, default=10
            How many of the weightiest neighbors are shown; None shows all.
        trust : bool, default=False
            Whether to add how strange each row looks and its 90 % prediction set. That needs new
            rows, and once a prediction of the rows that judge.
        views : sequence of arrays like `X`, optional
            As in `predict_proba`; a neighbor's weight is its mean over the views.

        Returns
        -------
        explanations : list of Explanation

        Raises
        ------
        ValueError
            If trust is asked for the training rows, or there are too few rows to judge by.
        """
        shown = super().explain(X, n_neighbors, views=views)
        if not trust:
            return shown
        strange = self.stranger_p_value(X, views=views)
        sets = self.predict_set(X, views=views)
        return [
            replace(one, stranger_p_value=float(p), prediction_set=list(self.classes_[held]))
            for one, p, held in zip(shown, strange, sets, strict=True)
        ]

    def predict_selective(
        self,
        X: Any,
        *,
        coverage: float | None = None,
        max_risk: float | None = None,
        score: Score | Literal["auto"] = "auto",
        confidence: float = 0.95,
        views: Sequence[Any] | None = None,
    ) -> Selection:
        """Predict, and say which predictions to act on.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), or images
        coverage : float in (0, 1], optional
            Share of rows to answer. Either this or `max_risk` is given.
        max_risk : float in (0, 1), optional
            Share of answers that may be wrong; as many rows are answered as that allows.
        score : str, default="auto"
            What orders the rows: "max_proba", "margin" (of the two most probable classes),
            "entropy", "null_mass" (attention that went to no neighbor), "distance" (to the k-th
            neighbor), "learned" (a cross-fitted logistic regression on all of these), or "auto":
            the one with the lowest AURC on the judged rows where that is clearly below the AURC
            of "max_proba", else that.
        confidence : float in (0, 1), default=0.95
            With which the risk bound holds.
        views : sequence of arrays like `X`, optional
            As in `predict_proba`.

        Returns
        -------
        selection : Selection
            labels, accepted, threshold, expected_risk, risk_bound, guarantee, ...

        Raises
        ------
        ValueError
            If both or none of `coverage` and `max_risk` are given or out of their range, the score
            is unknown, or no threshold keeps the risk below `max_risk`.
        """
        check_request(coverage, max_risk, confidence)
        encoded = self._queries(X, views)
        rows, parts, apart = self._judged_and_seen(encoded)
        judge = self._judge(rows, len(encoded))
        name = judge.choose(score)
        n_scores = len(judge.scores) if score == "auto" else 1
        doubt = (1.0 - confidence) / n_scores
        if coverage is not None:
            found, n_tests = judge.at_coverage(name, coverage), n_scores
            bound = judge.bound(name, found, doubt)
        else:
            assert max_risk is not None  # checked
            found, bound = judge.under_risk(name, max_risk, doubt)
            n_tests = n_scores * judge.n_thresholds
        values = judge.score(name, parts, apart)
        return Selection(
            labels=self.classes_[parts.proba.argmax(axis=1)],
            accepted=values >= found.value,
            score=values,
            score_name=name,
            threshold=found.value,
            coverage=found.coverage,
            expected_risk=found.risk,
            risk_bound=bound,
            confidence=confidence,
            n_judged=len(rows.labels),
            n_accepted=found.accepted,
            aurc=judge.aurc,
            guarantee=guarantee(
                confidence,
                bound,
                n_tests,
                held_out=self._held_out_once,
                refreshed="refreshed_rows" in self._state.choice,
                doubted=rows.doubted,
            ),
        )

    def predict_set(
        self,
        X: Any,
        confidence: float = 0.9,
        *,
        method: Method = "lac",
        class_conditional: bool = False,
        allow_empty: bool = True,
        penalty: float = 0.05,
        free_ranks: int = 1,
        seed: int | None = None,
        views: Sequence[Any] | None = None,
    ) -> np.ndarray:
        """Predict sets of classes that hold the true one about as often as asked.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), or images
        confidence : float in (0, 1), default=0.9
            Share of rows whose set is to hold the true class.
        method : {"lac", "aps", "raps"}, default="lac"
            "lac": the smallest sets on average. "aps": sets that grow with how hard a row is.
            "raps": "aps" with a penalty on large sets.
        class_conditional : bool, default=False
            Whether each class is to be covered as often as asked, rather than all on average.
        allow_empty : bool, default=True
            Whether a set may be empty: no class fits the row as well as labels usually do. False
            puts the most probable class in; rows are then covered more often than asked.
        penalty, free_ranks : float, int
            Of "raps": added for each class beyond the `free_ranks` most probable.
        seed : int, optional
            For "aps" and "raps": draw at random whether a class at the edge is in. Without, it is
            always in: no set is empty, and more rows are covered than asked where the classifier
            is right more often than that.
        views : sequence of arrays like `X`, optional
            As in `predict_proba`.

        Returns
        -------
        sets : bool ndarray of shape (n, n_classes)
            In the order of `classes_`.

        Raises
        ------
        ValueError
            If there are too few rows (of a class) to judge by, saying how many are needed.

        Notes
        -----
        CV+: a judged row is compared with what the member that was not fitted on it says of the
        new one. For rows drawn like the training rows, and members that saw nothing of a row they
        judge, coverage is at least 2 x confidence - 1 (less a term of order sqrt(1 / n)), and in
        practice near confidence. Here the memory, the gates and the temperatures have seen the
        judged rows of a cross-fit; held-out rows are unseen by memory and networks. What is
        covered is the average over rows, or over the rows of a class, not every row.

        Where `label_noise` doubts labels, the sets are to hold the *true* class: the judged rows
        are counted through the inverse of the transition, and what is covered is as right as that.
        """
        check_confidence(confidence)
        check_method(method)
        raps = check_penalty(penalty, free_ranks)
        encoded = self._queries(X, views)
        n_classes = len(self.classes_)
        rows = judged_rows(self._state, n_classes, len(encoded))
        check_enough(rows.truth, self.classes_, confidence, each=class_conditional)
        generator = None if seed is None else check_random_state(seed)

        def draw(n_rows: int) -> np.ndarray | None:
            return None if generator is None else generator.uniform(size=n_rows)

        judged = nonconformity(rows.parts.proba, method, raps, draw(len(rows.labels)))
        blocks = []
        for some in view_blocks(encoded):
            proba = member_probabilities(self._state, some, n_classes)
            drawn = draw(proba.shape[1])
            p = p_values(
                np.stack([nonconformity(one, method, raps, drawn) for one in proba]),
                judged,
                rows.truth,
                rows.folds,
                by_class=class_conditional,
            )
            sets = sets_from_p_values(p, confidence)
            if not allow_empty:
                empty = np.flatnonzero(~sets.any(axis=1))
                sets[empty, proba[-1][empty].argmax(axis=1)] = True
            blocks.append(sets)
        return np.concatenate(blocks)

    def stranger_score(
        self, X: Any, score: StrangerScore = "combined", *, views: Sequence[Any] | None = None
    ) -> np.ndarray:
        """Score how unlike the remembered rows new rows are.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), or images
        score : {"combined", "distance", "sparsity", "null_mass", "entropy"}
            "distance": to the k-th neighbor. "sparsity": logarithm of the mean distance to the
            neighbors over theirs to their own. "null_mass": attention that went to no neighbor.
            "entropy": of the prediction, in nats. "combined" (default): their mean, each in
            standard deviations from its mean among the judged rows.
        views : sequence of arrays like `X`, optional
            As in `predict_proba`.

        Returns
        -------
        score : float64 ndarray of shape (n,)
            Larger is stranger.
        """
        name = check_stranger_score(score)
        return stranger_scores(name, *self._judged_and_seen(self._queries(X, views)))

    def stranger_p_value(
        self, X: Any, score: StrangerScore = "combined", *, views: Sequence[Any] | None = None
    ) -> np.ndarray:
        """Share of known rows that score at least as strange: small for strangers.

        Flagging rows with p <= 0.05 raises about one false alarm in twenty known rows; exactly at
        most that for "distance" and "sparsity" and rows drawn like those judged by, about that for
        scores that depend on how members are pooled.

        Parameters
        ----------
        X, score, views
            As in `stranger_score`.

        Returns
        -------
        p : float64 ndarray of shape (n,)
            In (0, 1]; the smallest possible is 1 / (1 + judged rows).
        """
        name = check_stranger_score(score)
        rows, parts, apart = self._judged_and_seen(self._queries(X, views))
        known = stranger_scores(name, rows, rows.parts, rows.remoteness)
        return stranger_p_values(stranger_scores(name, rows, parts, apart), known, rows.counts)

    @property
    def _held_out_once(self) -> bool:
        return isinstance(self._state, SharedState)

    def _queries(self, X: Any, views: Sequence[Any] | None) -> list[AnyRows]:
        if X is None:
            raise ValueError(
                "Rows are judged against the training rows, so these cannot be asked themselves. "
                "Give new rows as X."
            )
        encoded = self._encode(X, views)
        assert encoded is not None  # only None gives None
        return encoded

    def _judged_and_seen(self, encoded: list[AnyRows]) -> tuple[JudgedRows, Parts, Remoteness]:
        rows = judged_rows(self._state, len(self.classes_), len(encoded))
        parts = make_parts(*self._answers(encoded))
        return rows, parts, remoteness_of_new(self._state, encoded[0])

    def _judge(self, rows: JudgedRows, n_views: int) -> Judge:
        kept = self._state.views.derived  # emptied with the judged rows, when the memory changes
        place = ("judge", len(self.classes_), n_views)
        if place not in kept:
            kept[place] = Judge(rows)
        judge: Judge = kept[place]
        return judge
