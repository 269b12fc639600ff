"""The report of the experiment suite: the study as replayed, corrected, and what became of it."""

from nearwise_lab.experiments.places import Place
from nearwise_lab.report.study.claims import CLAIMS, Claim, judge_claims
from nearwise_lab.report.study.document import study_document
from nearwise_lab.report.study.parts import Study
from nearwise_lab.report.study.verdicts import Finding

__all__ = [
    "CLAIMS",
    "Claim",
    "Finding",
    "Place",
    "Study",
    "judge_claims",
    "study_document",
]
