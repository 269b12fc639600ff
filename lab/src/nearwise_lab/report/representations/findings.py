"""The study's question and its hypotheses, answered from the records."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nearwise.data import Context
from nearwise_lab.comparisons import PairedDifference
from nearwise_lab.experiments.representations import Cell, Comparison
from nearwise_lab.experiments.representations.records import MAIN, ProbeRecord

Verdict = str
UP, DOWN, NONE, MIXED, MISSING, CHANCE = (
    "supported", "contradicted", "not shown", "supported in part", "not measured", "not judged",
)  # fmt: skip
RECONSTRUCTION = {"full": "full+nce", "sparse": "sparse+nce"}
CHALLENGERS = ("sparse", "full+nce", "sparse+nce")
TRAINED = ("linear", "transformer")
NEEDS = {
    "question": "Needs the full baseline and a sparse or contrastive field, under knn and under "
    "linear or transformer.",
    "H1": "Needs a field with the contrastive term and the one without it (full and full+nce, "
    "or sparse and sparse+nce), under knn and transformer.",
    "H2": "Needs the fields sparse and full.",
    "H3": "Needs the field full or sparse, under knn, attention and linear.",
}
"""What a verdict is computed from, named where it was not measured."""


@dataclass(frozen=True)
class Evidence:
    """One difference and what it is of."""

    what: str
    difference: PairedDifference

    @property
    def points(self) -> str:
        """Accuracy points with the interval."""
        return points(self.difference)


@dataclass(frozen=True)
class Hypothesis:
    """Evidence of the records on one hypothesis.

    Attributes
    ----------
    name, claim : str
        Short name and the sentence that is tested.
    verdict : str
        "supported", "supported in part", "contradicted", "not shown" (the interval holds 0),
        "not judged" (what would decide is at chance) or "not measured".
    evidence : list of Evidence
        Differences that decide, in accuracy.
    words : str
        The answer in a sentence or two.
    """

    name: str
    claim: str
    verdict: Verdict
    evidence: list[Evidence]
    words: str


def points(difference: PairedDifference) -> str:
    """Write a difference of accuracies in points, as "+2.1 [+0.3, +3.9]"."""
    d = difference
    return f"{100 * d.mean:+.1f} [{100 * d.low:+.1f}, {100 * d.high:+.1f}]"


def judge_all(comparison: Comparison) -> list[Hypothesis]:
    """Judge the study's question and H1 to H3, in every context that was measured.

    What a probe at chance read of a field decides nothing, and is named.
    """
    every, some = comparison.contexts, comparison.sparse_contexts
    lost = [cell for cell in _cells(comparison) if comparison.at_chance(cell)]
    judged = replace(comparison, records=[r for r in comparison.records if _cell(r) not in lost])
    parts = (question, every), (contrastive_neighbors, every), (sparse_wins_when_sparse, some)
    found = []
    for judge, contexts in (*parts, (attention_closes_gap, every)):
        for context in contexts:
            here = [cell for cell in lost if cell.context == context]
            found.append(_with_lost(judge(judged, context), here))
    return found


def _cells(comparison: Comparison) -> list[Cell]:
    fields = _present(comparison, ("full", *CHALLENGERS))
    cells = [_cell(r) for r in comparison.part(MAIN) if r["encoder"] in fields]
    return list(dict.fromkeys(cells))


def _cell(record: ProbeRecord) -> Cell:
    return Cell(record["encoder"], record["probe"], record["context"])


def _with_lost(hypothesis: Hypothesis, lost: Sequence[Cell]) -> Hypothesis:
    if not lost:
        return hypothesis
    of_probe = {cell.probe: [o.encoder for o in lost if o.probe == cell.probe] for cell in lost}
    named = [
        f"{PROBE_WORDS.get(probe, probe)} on {_listed(arms)}" for probe, arms in of_probe.items()
    ]
    words = f"At chance, no verdict: {'; '.join(named)}."
    if hypothesis.verdict == MISSING:
        return replace(hypothesis, verdict=CHANCE, words=words)
    return replace(hypothesis, words=f"{hypothesis.words} {words}")


def question(comparison: Comparison, context: str) -> Hypothesis:
    """Judge whether k-NN favors sparse and contrastive fields where trained probes do not.

    For each challenger: its lead over the full baseline by k-NN, minus its lead by a trained
    probe. Supported where k-NN favors it (above 0), a trained probe favors the baseline (below 0).
    """
    evidence: list[Evidence] = []
    marks = []
    for arm in _present(comparison, CHALLENGERS):
        for probe in _present_probes(comparison, TRAINED):
            near, far = (
                _lead(comparison, arm, "knn", context),
                _lead(comparison, arm, probe, context),
            )
            twist = _twist(comparison, arm, probe, context)
            if near is None or far is None or twist is None:
                continue
            evidence += [
                Evidence(f"{arm} over full, k-NN", near),
                Evidence(f"{arm} over full, {probe}", far),
                Evidence(f"{arm}: k-NN lead minus {probe} lead", twist),
            ]
            marks.append(_question_mark(near, far, twist))
    claim = (
        f"With {_seen(context)}, k-NN favors the sparse and contrastive fields while trained "
        "probes favor plain reconstruction."
    )
    return Hypothesis(
        f"the question, {context}", claim, _pooled(marks), _unique(evidence),
        _question_words(comparison, context, marks),
    )  # fmt: skip


def _question_mark(
    near: PairedDifference, far: PairedDifference, twist: PairedDifference
) -> Verdict:
    if near.verdict == "higher" and far.verdict == "lower":
        return UP
    if twist.verdict == "lower" or near.verdict == "lower":
        return DOWN
    return NONE


def _question_words(comparison: Comparison, context: str, marks: Sequence[Verdict]) -> str:
    if not marks:
        return NEEDS["question"]
    parts = []
    for probe in ("knn", *_present_probes(comparison, TRAINED)):
        leads = {
            arm: lead
            for arm in _present(comparison, CHALLENGERS)
            if (lead := _lead(comparison, arm, probe, context)) is not None
        }
        parts.append(f"{PROBE_WORDS[probe]} {_who_leads(leads)}")
    turned = sum(m == UP for m in marks)
    end = (
        f"The pattern of the study shows in {turned} of {len(marks)} pairings."
        if turned
        else f"The pattern of the study shows in none of {len(marks)} pairings."
    )
    return f"{_sentence('; '.join(parts))}. {end}"


def _who_leads(leads: dict[str, PairedDifference]) -> str:
    above = [a for a, d in leads.items() if d.verdict == "higher"]
    below = [a for a, d in leads.items() if d.verdict == "lower"]
    even = [a for a, d in leads.items() if d.verdict == "none"]
    texts = []
    if above:
        texts.append(f"favors {_listed(above)} over the full baseline")
    if below:
        texts.append(f"favors the full baseline over {_listed(below)}")
    if even:
        texts.append(f"shows no difference between the full baseline and {_listed(even)}")
    return _listed(texts) if texts else "was not measured"


def contrastive_neighbors(comparison: Comparison, context: str) -> Hypothesis:
    """H1: the contrastive term helps k-NN but not the transformer probe."""
    evidence, marks = [], []
    for plain, with_nce in RECONSTRUCTION.items():
        near = comparison.difference(Cell(with_nce, "knn", context), Cell(plain, "knn", context))
        deep = comparison.difference(
            Cell(with_nce, "transformer", context), Cell(plain, "transformer", context)
        )
        if near is None or deep is None:
            continue
        evidence += [
            Evidence(f"{with_nce} minus {plain}, k-NN", near),
            Evidence(f"{with_nce} minus {plain}, transformer", deep),
        ]
        if near.verdict == "higher":
            marks.append(UP if deep.verdict != "higher" else DOWN)
        else:
            marks.append(DOWN if near.verdict == "lower" else NONE)
    claim = (
        f"H1, {_seen(context)}: fields with the contrastive term beat reconstruction alone on k-NN "
        "but not on the transformer probe (equal steps)."
    )
    words = _evidence_words(evidence) if marks else NEEDS["H1"]
    return Hypothesis(f"H1, {context}", claim, _pooled(marks), evidence, words)


def sparse_wins_when_sparse(comparison: Comparison, context: str) -> Hypothesis:
    """H2: fields trained on sparse contexts win when little is visible."""
    evidence, marks = [], []
    for probe in comparison.probes:
        found = comparison.difference(Cell("sparse", probe, context), Cell("full", probe, context))
        if found is not None:
            evidence.append(Evidence(f"sparse minus full, {probe}", found))
            marks.append({"higher": UP, "lower": DOWN, "none": NONE}[found.verdict])
    claim = f"H2, {_seen(context)}: the field trained on sparse contexts beats the full baseline."
    words = _evidence_words(evidence) if marks else NEEDS["H2"]
    return Hypothesis(f"H2, {context}", claim, _pooled(marks), evidence, words)


def attention_closes_gap(comparison: Comparison, context: str) -> Hypothesis:
    """H3: learned neighbor attention closes part of the gap from k-NN to linear."""
    evidence, marks, shares = [], [], []
    for arm in _present(comparison, RECONSTRUCTION):
        gap = comparison.difference(Cell(arm, "linear", context), Cell(arm, "knn", context))
        closed = comparison.difference(Cell(arm, "attention", context), Cell(arm, "knn", context))
        if gap is None or closed is None:
            continue
        evidence += [
            Evidence(f"{arm}: linear minus k-NN (the gap)", gap),
            Evidence(f"{arm}: attention minus k-NN (closed)", closed),
        ]
        if gap.verdict != "higher":
            marks.append(NONE)
            shares.append(f"{arm} has no gap to close")
            continue
        marks.append({"higher": UP, "lower": DOWN, "none": NONE}[closed.verdict])
        shares.append(f"on {arm} attention closes {100 * closed.mean / gap.mean:.0f} % of the gap")
    claim = (
        f"H3, {_seen(context)}: attention over neighbors closes part of the gap from k-NN to the "
        "linear probe on reconstruction features."
    )
    words = f"{_sentence('; '.join(shares))}." if marks else NEEDS["H3"]
    return Hypothesis(f"H3, {context}", claim, _pooled(marks), evidence, words)


PROBE_WORDS = {
    "knn": "k-NN",
    "attention": "attention over neighbors",
    "linear": "the linear probe",
    "transformer": "the transformer probe",
}


def _lead(comparison: Comparison, arm: str, probe: str, context: str) -> PairedDifference | None:
    return comparison.difference(Cell(arm, probe, context), Cell("full", probe, context))


def _twist(comparison: Comparison, arm: str, probe: str, context: str) -> PairedDifference | None:
    return comparison.contrast(
        [
            (1.0, Cell(arm, "knn", context)),
            (-1.0, Cell("full", "knn", context)),
            (-1.0, Cell(arm, probe, context)),
            (1.0, Cell("full", probe, context)),
        ]
    )


def _pooled(marks: Sequence[Verdict]) -> Verdict:
    """One verdict of several: all of a kind, in part, or against each other."""
    if not marks:
        return MISSING
    if all(m == UP for m in marks):
        return UP
    if UP in marks:
        return MIXED
    return DOWN if DOWN in marks else NONE


def _evidence_words(evidence: Sequence[Evidence]) -> str:
    said = {"higher": "higher", "lower": "lower", "none": "no difference"}
    texts = [f"{e.what}: {e.points} points, {said[e.difference.verdict]}" for e in evidence]
    return "; ".join(texts) + "."


def _present(comparison: Comparison, names: Sequence[str] | dict[str, str]) -> list[str]:
    return [n for n in names if n in comparison.encoders]


def _present_probes(comparison: Comparison, names: Sequence[str]) -> list[str]:
    return [n for n in names if n in comparison.probes]


def _unique(evidence: Sequence[Evidence]) -> list[Evidence]:
    return list({e.what: e for e in evidence}.values())


def _seen(context: str) -> str:
    seen = Context.parse(context)
    if seen.kind == "full":
        return "the whole image seen"
    return f"a share of {seen.fraction:g} of the pixels seen"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _sentence(text: str) -> str:
    return text if text.startswith("k-NN") else text[:1].upper() + text[1:]
