"""Query: results of a fitted classifier for some rows, computed once and cached."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from nearwise.cached import cached_property
from nearwise.estimators.inputs.rows import AnyRows
from nearwise.estimators.model.class_predictor import ClassPredictor
from nearwise.estimators.model.fitted_model import FittedClassifier, FittedModel
from nearwise.estimators.model.log_linear_pool import Answer, finish, joined
from nearwise.estimators.model.memory_views import Retrieval
from nearwise.estimators.model.row_models import view_blocks
from nearwise.estimators.uncertainty.calibration_rows import (
    CalibrationRows,
    calibration_rows,
)
from nearwise.estimators.uncertainty.conformal import (
    Method,
    check_confidence,
    check_enough,
    check_method,
    check_penalty,
    nonconformity,
    p_values,
    sets_from_p_values,
)
from nearwise.estimators.uncertainty.explain import (
    CHUNK,
    Explanation,
    Parts,
    Reason,
    explained,
    make_parts,
    reasons,
    remembered_reasons,
)
from nearwise.estimators.uncertainty.novelty import (
    NoveltyScore,
    check_novelty_score,
    novelty_p_values,
    novelty_scores,
)
from nearwise.estimators.uncertainty.selective import (
    Judge,
    Selection,
    check_request,
    guarantee,
)
from nearwise.functional.threads import one_thread
from nearwise.warn import warn_user

SET_CONFIDENCE = 0.9
DEFAULT_SHOWN = 10  # neighbors in an explanation by default


class Query:
    """Results of one version of a fitted classifier for some rows.

    Encoding, base, searches and the head's predictions are computed in one pass over the rows,
    block by block, for the first result; all other results use them. Explanations not requested
    by `explain` need a second pass.

    Parameters
    ----------
    model : FittedClassifier
    views : list of Encoded or EncodedImages, or None
        Rows in all views; None means leave-one-out predictions of the remembered rows.
    explain : int or None or False, default=False
        Number of neighbors in `explanations`; None shows all, False requests no explanations.
    judged_by : CalibrationRows, optional
        Calibration rows of an earlier version. Default: of this version; these are predicted
        again after each change of the memory.
    """

    def __init__(
        self,
        model: FittedClassifier,
        views: list[AnyRows] | None,
        *,
        explain: int | Literal[False] | None = False,
        judged_by: CalibrationRows | None = None,
    ) -> None:
        self._judged_by = judged_by
        self.model = model.for_query(remembered=views is None)
        self.views, self._n_classes = views, len(model.classes)
        self._explains = explain is not False
        self._n_shown = DEFAULT_SHOWN if explain is False else explain
        self._passed: bool | None = None  # whether the completed pass includes explanations
        self._calibration = self.model.predictor.calibration(1 if views is None else len(views))

    # --- one pass over the rows ---------------------------------------------------------------

    def _pass(self, *, explaining: bool = False) -> None:
        """Predict the rows, and explain them if needed, unless done already."""
        if self._passed is not None and self._passed >= explaining:
            return
        self._passed = None  # until the pass is complete
        self._explains |= explaining
        self._merged: list[Answer] = []
        self._distances: list[np.ndarray] = []
        self._reasons: list[Reason] = []
        with one_thread(torch_only=True):
            for features, views in self._retrieve():
                self._note(features, views)
        self._passed = self._explains

    def _retrieve(self) -> Iterator[tuple[Tensor, list[Retrieval]]]:
        assert self.views is not None  # remembered rows use predict_left_out
        for block in view_blocks(self.views):
            n_rows = len(block[0])
            if n_rows <= CHUNK or (self.model.holds_memory and not self._explains):
                parts = iter([block])
            else:  # retrieved neighbors need much memory
                rows = torch.arange(n_rows).split(CHUNK)
                parts = ([view.take(some.numpy()) for view in block] for some in rows)
            for part in parts:
                if not self._explains:
                    self.model.predictor.views.release()
                yield self.model.predictor.retrieve(part)

    def _note(self, features: Tensor, views: list[Retrieval]) -> None:
        """Store predictions, distances and explanations of a block of retrieved rows."""
        predictor, n_classes = self.model.predictor, self._n_classes
        attended = []
        if self._explains:
            attended = [predictor.attend(view) for view in views]
            answers = [
                predictor.finished(one.output, one.view.base_log_proba, n_classes)
                for one in attended
            ]
        else:
            answers = [predictor.answer(view, n_classes) for view in views]
        self._merged.append(predictor.merged(answers))
        self._distances.append(views[0].found[0].distances[:, -1].double().numpy())
        if self._explains:
            self._reasons += reasons(
                predictor,
                features,
                attended,
                self._n_shown,
                n_classes,
                self._calibration,
            )

    # --- answers --------------------------------------------------------------------------------

    @cached_property
    def _answer(self) -> Answer:
        """Prediction merged over views and corrected for the class prior."""
        if self.views is None:
            warn_of_learned(self.model.predictor)
            merged = self.model.predictor.predict_left_out(self._n_classes)
        else:
            self._pass()
            merged = joined(self._merged)
        return self._calibration.corrected(merged)

    def proba(self) -> np.ndarray:
        """Class probabilities, (n, n_classes)."""
        return finish(self._answer.log_proba, self._calibration.whole)

    @cached_property
    def parts(self) -> Parts:
        """Final probabilities, with the parts of base and neighbors."""
        return make_parts(self._answer, self._calibration)

    def explanations(self, *, trust: bool = False) -> list[Explanation]:
        """Explanations by neighbors; with `trust` also the novelty p-value and a 90 % set."""
        predictor, classes = self.model.predictor, self.model.classes
        if trust:  # raise before the computation
            rows = self.calibration_rows()
            check_enough(rows.truth, classes, SET_CONFIDENCE, each=False, noun=rows.noun)
        if self.views is None:
            parts = self.parts
            behind = remembered_reasons(predictor, self._n_shown, len(classes))
        else:
            self._pass(explaining=True)
            parts, behind = self.parts, self._reasons
        of_model = self.model.remembered, self.model.target_name
        shown = explained(predictor, behind, parts, classes, *of_model)
        if not trust:
            return shown
        p_values, sets = self.novelty_p_value(), self.sets(SET_CONFIDENCE)
        return [
            replace(one, novelty_p_value=float(p), prediction_set=list(classes[held]))
            for one, p, held in zip(shown, p_values, sets, strict=True)
        ]

    def can_judge(self, confidence: float = SET_CONFIDENCE) -> bool:
        """Whether there are enough calibration rows for sets of a confidence."""
        return self.calibration_rows().can_judge(confidence)

    def selection(
        self,
        *,
        coverage: float | None = None,
        max_risk: float | None = None,
        confidence: float = 0.95,
    ) -> Selection:
        """Predict with abstention; see `AttnKNNClassifier.predict_selective`."""
        check_request(coverage, max_risk, confidence)
        rows = self.calibration_rows().one_per_group()
        parts, alpha = self.parts, 1.0 - confidence
        judge = Judge(rows)
        if coverage is not None:
            found, n_tests = judge.at_coverage(coverage), 1
            bound = judge.bound(found, alpha)
        else:
            assert max_risk is not None  # checked
            found, bound = judge.under_risk(max_risk, alpha)
            n_tests = judge.n_thresholds
        values = parts.proba.max(axis=1)
        return Selection(
            labels=self.model.classes[parts.proba.argmax(axis=1)],
            accepted=values >= found.value,
            score=values,
            threshold=found.value,
            coverage=found.coverage,
            expected_risk=found.risk,
            risk_bound=bound,
            confidence=confidence,
            n_calibration=len(rows.labels),
            n_accepted=found.accepted,
            guarantee=guarantee(
                confidence,
                bound,
                n_tests,
                judged_on=self.model.predictor.judged_on,
                caveat=rows.caveat if rows.in_shares else "",
                grouped=rows.groups is not None,
            ),
        )

    def sets(
        self,
        confidence: float = SET_CONFIDENCE,
        *,
        method: Method = "lac",
        class_conditional: bool = False,
        allow_empty: bool = True,
        penalty: float = 0.05,
        free_ranks: int = 1,
        seed: int | None = None,
    ) -> np.ndarray:
        """Prediction sets, bool (n, n_classes); see `AttnKNNClassifier.predict_set`."""
        check_confidence(confidence)
        check_method(method)
        raps = check_penalty(penalty, free_ranks)
        rows = self.calibration_rows()
        enough = rows.truth, self.model.classes, confidence
        check_enough(*enough, each=class_conditional, noun=rows.noun)
        generator = None if seed is None else check_random_state(seed)

        def draw(n_rows: int) -> np.ndarray | None:
            return None if generator is None else generator.uniform(size=n_rows)

        judged = nonconformity(rows.parts.proba, method, raps, draw(len(rows.labels)))
        proba = self.proba()
        scores = nonconformity(proba, method, raps, draw(len(proba)))
        p = p_values(scores, judged, rows.truth, by_class=class_conditional)
        sets = sets_from_p_values(p, confidence)
        if not allow_empty:
            empty = np.flatnonzero(~sets.any(axis=1))
            sets[empty, proba[empty].argmax(axis=1)] = True
        return sets

    def novelty_score(self, score: NoveltyScore = "combined") -> np.ndarray:
        """Novelty scores of the rows, (n,); larger is more novel."""
        name = check_novelty_score(score)
        rows = self.calibration_rows()
        self._pass()
        return novelty_scores(name, rows, self.parts, np.concatenate(self._distances))

    def novelty_p_value(self, score: NoveltyScore = "combined") -> np.ndarray:
        """Share of calibration rows with at least the novelty score of each row, (n,)."""
        name = check_novelty_score(score)
        rows = self.calibration_rows()
        known = novelty_scores(name, rows, rows.parts, rows.distance)
        return novelty_p_values(self.novelty_score(name), known, rows.counts)

    # --- calibration rows -----------------------------------------------------------------------

    def calibration_rows(self) -> CalibrationRows:
        """Calibration rows for sets, selection and novelty."""
        if self.views is None:
            raise ValueError(
                "Rows are compared with the training rows, so these have no score themselves. "
                "Give new rows as X."
            )
        if self._judged_by is not None:
            return self._judged_by
        return calibration_rows(self.model.predictor, self._n_classes, len(self.views))


def warn_of_learned(predictor: ClassPredictor) -> None:
    """Warn if base or keys were trained on labels of remembered rows."""
    judged = predictor.judged
    if not bool(judged.all()):
        warn_user(
            f"Base or networks were trained on {int((~judged).sum())} of the {len(judged)} rows "
            "in memory, so their predictions are overconfident. Only the other "
            f"{int(judged.sum())} are predicted out of sample."
        )


def kneighbors(
    model: FittedModel, features: Callable[[], Tensor] | None, n_neighbors: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Ascending distances and ids of the nearest remembered rows in the feature space.

    Parameters
    ----------
    model : FittedClassifier or FittedRegressor
    features : callable or None
        Returns the rows' keys; None means the remembered rows, each left out.
    n_neighbors : int or None
        Number of neighbors; None uses the model's number.
    """
    views = model.predictor.views
    spec = views.specs[0]
    k = spec.n_neighbors if n_neighbors is None else n_neighbors
    spare = views.n_findable - (features is None)
    if not 1 <= k <= spare:
        raise ValueError(
            f"n_neighbors={k} must lie between 1 and the {spare} rows that may be found."
        )
    if features is None:
        found = views.search(spec, views.bank.keys["features"], k, views.bank.ids)
    else:
        found = views.search(spec, features(), k)
    ids: Any = views.bank.ids[found.indices].numpy()
    return (found.distances * spec.unit).numpy(), ids
