"""The corrected method ("v1"): AttnKNNClassifier beside plain neighbors and its upper bound."""

from nearwise_lab.experiments.runner import Job
from nearwise_lab.experiments.study.corrected_session import CorrectedSession
from nearwise_lab.experiments.study.weights import weights_jobs

WEIGHTS = "weights"


def run_v1(experiment: str, session: CorrectedSession) -> list[Job]:
    """Jobs of one experiment with the corrected method.

    Parameters
    ----------
    experiment : {"main", "k-sweep", "weights", "label-noise", "long-tail", "theory", "ablation"}
    session : CorrectedSession

    Returns
    -------
    jobs : list of Job
    """
    if experiment == WEIGHTS:
        return weights_jobs(session)
    if session.dataset.kind == "images":
        from nearwise_lab.experiments.study.corrected_images import EXPERIMENTS as experiments
    else:
        from nearwise_lab.experiments.study.corrected_tables import EXPERIMENTS as experiments
    return experiments[experiment](session)
