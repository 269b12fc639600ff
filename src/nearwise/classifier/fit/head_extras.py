"""Which of a head's optional terms and parts are kept: those that lower the held-out NLL."""

from collections.abc import Callable
from typing import Any

from nearwise.training import HeadConfig


def choose_extras(
    wanted: HeadConfig,
    plain_nll: float,
    n_rows: int,
    held_out_nll: Callable[[HeadConfig], float],
) -> tuple[HeadConfig, dict[str, Any]]:
    """Try each extra beside those kept so far.

    Parameters
    ----------
    wanted : HeadConfig
        Settings with the extras that are on offer.
    plain_nll : float
        Held-out NLL without any of them.
    n_rows : int
        Rows behind it: an extra has to win more than one parameter does by chance, 1 / n_rows.
    held_out_nll : callable
        Held-out NLL of some settings.

    Returns
    -------
    config : HeadConfig
        With the extras that are kept.
    report : dict of str to dict
        Of each extra on offer its `nll`, that `without` it, and whether it was `kept`.
    """
    kept, best = wanted.without_extras(), plain_nll
    report: dict[str, Any] = {}
    for name in wanted.extras:
        tried = kept.model_copy(update={name: getattr(wanted, name)})
        nll = held_out_nll(tried)
        better = nll < best - 1.0 / n_rows
        report[name] = {"nll": nll, "without": best, "kept": better}
        if better:
            kept, best = tried, nll
    return kept, report
