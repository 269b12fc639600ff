"""Round two under label noise: what members are fitted to once their labels are doubted."""

from typing import Any

import numpy as np
from torch import Tensor

from nearwise.classifier.fit.base import Target, cross_fit
from nearwise.classifier.fit.problem import FitSettings, Problem
from nearwise.classifier.fit.progress import Progress
from nearwise.classifier.inputs.table import TableEncoder
from nearwise.classifier.model.gates import clearly_lower, given_losses
from nearwise.classifier.model.state import as_float
from nearwise.classifier.noise.denoising import (
    find_noise,
    light_candidates,
    of_one_class,
)


def see_through(
    problem: Problem,
    settings: FitSettings,
    keys: Tensor,
    progress: Progress,
    choice: dict[str, Any],
) -> bool:
    """Run round one and set what round two works on; whether labels are doubted."""
    noise = problem.noise = find_noise(problem, settings, keys, progress, choice)
    if noise is None or noise.evidence is None:
        return False
    n_members = len(noise.evidence)
    posteriors = [noise.posterior(member, problem.labels) for member in range(n_members)]
    problem.transition = as_float(noise.transition.matrix)
    problem.shares = np.average(np.mean(posteriors, axis=0), axis=0, weights=problem.weight)
    targets: list[Target] = []
    for labels in posteriors:
        weight = labels.max(axis=1)
        own = weight if problem.weight is None else weight * problem.weight
        targets.append((labels.argmax(axis=1), own))
    note = choice["label_noise"]
    per_fold = zip(targets, problem.folds, strict=False)  # folds held out once share one target
    if any(of_one_class(labels[train]) for (labels, _), (train, _) in per_fold):
        note["fitted_to"] = "given"  # a posterior of one class teaches nothing
    elif _worth_fitting(problem, settings, targets, progress, note):
        problem.targets = targets
    return True


def _worth_fitting(
    problem: Problem,
    settings: FitSettings,
    targets: list[Target],
    progress: Progress,
    note: dict[str, Any],
) -> bool:
    """Whether light models of posterior labels tell given ones better than those of given ones.

    By two standard errors of the difference, row by row: where the posterior is unsure, its most
    probable labels look surer than the rows are.
    """
    if not isinstance(problem.encoder, TableEncoder) or settings.base is None:
        return True
    shared = settings.validation_fraction is not None
    folds = problem.folds[:1] if shared else problem.folds
    judged = np.concatenate([held_out for _, held_out in folds])
    assert problem.transition is not None  # set before
    losses = []
    for wanted in (None, targets):
        base = cross_fit(
            light_candidates(problem, settings),
            *problem.table,
            problem.labels,
            problem.weight,
            folds,
            problem.n_classes,
            targets=wanted,
            transition=problem.transition,
            progress=progress.stage,
        )
        own = base.oof_log_proba[judged]
        losses.append(given_losses(own, problem.transition, problem.labels[judged]))
    means = [float(loss.mean()) for loss in losses]
    note["round_two_nll"] = dict(zip(("given", "posterior"), means, strict=True))
    return clearly_lower(losses[1], losses[0])
