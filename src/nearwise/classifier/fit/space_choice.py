"""Key spaces that do not help are left out, by the NLL of rows that heads have not seen."""

from dataclasses import replace

import torch

from nearwise.classifier.fit.head_fitting import TRIED, CrossFit, cross_fit_heads
from nearwise.classifier.fit.problem import FitSettings, Problem
from nearwise.classifier.fit.progress import Progress
from nearwise.classifier.model.key_space import SpaceSpec
from nearwise.classifier.model.pooling import mean_nll
from nearwise.classifier.model.state import LearnedState
from nearwise.training import HeadRows

_STAYS = "features"  # where reliability is judged, and what `kneighbors` speaks of


def leave_out_spaces(
    state: LearnedState,
    problem: Problem,
    settings: FitSettings,
    data: HeadRows,
    fit: CrossFit,
    progress: Progress,
) -> tuple[CrossFit, list[int]]:
    """Leave out one space after the other as long as that lowers the held-out NLL.

    Heads are fitted anew on what was found already; nothing is searched again. Each trial fits the
    first heads only, and counts on their held-out rows. A space goes where the NLL falls by more
    than one over their number.

    Parameters
    ----------
    state : LearnedState
        With heads over all spaces; changed in place: heads, specs of its views, and the choice.
    fit : CrossFit
        Of those heads.

    Returns
    -------
    fit : CrossFit
    kept : list of int
        Places of the spaces that stay.
    """
    progress.stage("spaces")
    judged = torch.cat([torch.from_numpy(rows) for _, rows in problem.folds[:TRIED]])
    truth, weight = problem.truth[judged], problem.row_weight[judged]
    names = [spec.name for spec in state.views.specs]
    pooling = state.choice["pooling"]

    def with_spaces(places: list[int], n_heads: int, begun: CrossFit | None = None) -> CrossFit:
        some = replace(data, spaces=[data.spaces[i] for i in places])
        return cross_fit_heads(state, problem, settings, some, pooling, n_heads, progress, begun)

    def nll_of(tried: CrossFit) -> float:
        return mean_nll(tried.log_proba[judged], truth, weight, problem.transition)

    kept = list(range(len(names)))
    best, begun = nll_of(fit), fit
    nlls = {"all": best}
    n_records = len(state.history)
    while len(kept) > 1:
        trials = {}
        for gone in (i for i in kept if names[i] != _STAYS):
            fewer = [i for i in kept if i != gone]
            trials[gone] = with_spaces(fewer, TRIED)
            left_out = [name for i, name in enumerate(names) if i not in fewer]
            nlls["without " + ", ".join(left_out)] = nll_of(trials[gone])
        gone = min(trials, key=lambda i: nll_of(trials[i]))
        if nll_of(trials[gone]) >= best - state.n_views / len(judged):  # a row counts once
            break
        kept.remove(gone)
        best, begun = nll_of(trials[gone]), trials[gone]
    del state.history[n_records:]
    if len(kept) < len(names):
        fit = with_spaces(kept, len(problem.folds), begun)
        state.heads = fit.heads
        _forget_spaces(state, kept)
    state.choice |= {"spaces": [names[i] for i in kept], "spaces_nll": nlls}
    return fit, kept


def _forget_spaces(state: LearnedState, kept: list[int]) -> None:
    """Drop the keys and reliabilities of spaces that do not stay."""
    views = state.views
    stay = [views.specs[i] for i in kept]

    def columns(spec: SpaceSpec) -> set[str]:
        return {spec.name, *(views.side(spec, member) for member in views.judges)}

    used = set().union(*map(columns, stay))
    for spec in views.specs:
        for name in columns(spec) - used:
            views.bank.keys.pop(name, None)
    views.specs = stay
    views.forget()
