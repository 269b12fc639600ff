"""Report of the comparison of representations: claims, tables, figures and maps."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from nearwise.data import Context
from nearwise_lab.comparisons import PairedDifference
from nearwise_lab.experiments.representations import FIVE, Comparison, arm_of
from nearwise_lab.experiments.representations import Cell as Place
from nearwise_lab.experiments.representations.comparison import MAIN, POOLING, PROTOCOL
from nearwise_lab.report.charts import (
    Bars,
    Line,
    Lines,
    Panel,
    Pixels,
    Points,
    chart,
    points_of,
)
from nearwise_lab.report.claims import (
    Claim,
    Evidence,
    Finding,
    Verdict,
    compared,
    judge,
    verdict_table,
)
from nearwise_lab.report.commands import readable_command
from nearwise_lab.report.compare import BOLD
from nearwise_lab.report.document import (
    Block,
    Document,
    Fold,
    Section,
    Words,
    difference_table,
    mean_table,
)
from nearwise_lab.report.drawing import ACCENT, LINE_COLORS, SOFT, Picture, picture, slug
from nearwise_lab.report.summary import seed_words
from nearwise_lab.results.measures import Mean, Measure, Table, mean_with_interval

ACCURACY = Measure("accuracy", "accuracy", 3, True)
POINTS = Measure("accuracy", "accuracy", 1, True, 100.0)
CALIBRATION = (
    Measure("top5", "top-5", 3, True),
    Measure("nll", "NLL", 3),
    Measure("brier", "Brier", 3),
    Measure("ece", "ECE", 3),
    Measure("aurc", "AURC x1000", 1, False, 1000.0),
)
GEOMETRY = (
    Measure("purity", "purity@20", 3, True),
    Measure("silhouette", "silhouette", 3, True),
)
ERRORS = {"psnr": "PSNR, dB", "psnr_hidden": "PSNR of hidden pixels, dB"}
COLORS = {
    "pixels": LINE_COLORS[5], "sparse": LINE_COLORS[1], "full": LINE_COLORS[0], "full+nce": ACCENT,
    "sparse+nce": LINE_COLORS[3], "random": SOFT,
}  # fmt: skip
OTHER_COLOR = LINE_COLORS[4]
RECONSTRUCTION = {"full": "full+nce", "sparse": "sparse+nce"}
CHALLENGERS = ("sparse", "full+nce", "sparse+nce")
TRAINED = ("linear", "transformer")
_HOW = (
    "Encoders are frozen and read each image once; probes are fitted on the training part, every "
    "choice is made on the validation part, and the test part is read once. Rows of the "
    "validation part then join those that k-NN, attention and linear probes learn from; "
    "transformers keep their best epoch. Where pixels are hidden, transformers read the original "
    "pixels as points with Fourier features of their places. All fields take the same number of "
    "steps: finetuning with the contrastive term is compared with as many further steps without "
    "it. Differences are paired over test rows and seeds: the variance of their means over seeds "
    "and over rows both count, and where there is one seed the interval is over rows alone."
)
_FACTS = {
    "dataset": "Data set", "sizes": "Rows", "left_out": "Left out", "settings": "Settings",
    "times": "Times", "hardware": "Hardware", "versions": "Versions", "command": "Command",
}  # fmt: skip


def _pair(
    found: Comparison, first: tuple[str, str], second: tuple[str, str], context: str,
    what: str = "",
) -> Evidence | None:  # fmt: skip
    """Accuracy of one encoder and probe minus that of another, in points."""
    difference = found.difference(Place(*first, context), Place(*second, context))
    return next(iter(compared(difference, POINTS, what)), None)


def _question(found: Comparison, context: str) -> list[Evidence]:
    """Gain of each challenger over the baseline by k-NN, minus the gain by a trained probe."""
    evidence = []
    for arm, probe in product(CHALLENGERS, TRAINED):
        near, far = (_pair(found, (arm, p), ("full", p), context) for p in ("knn", probe))
        places = [Place(a, p, context) for p in ("knn", probe) for a in (arm, "full")]
        twist = found.contrast(list(zip((1.0, -1.0, -1.0, 1.0), places, strict=True)))
        if not near or not far or twist is None:
            continue
        cap: Verdict | None = "no difference"
        if near.above and far.below:
            cap = None
        elif near.below or twist.verdict == "lower":
            cap = "not validated"
        note = f"over full: k-NN {near.amount}, {probe} {far.amount}"
        evidence += compared(twist, POINTS, f"{arm}: k-NN lead minus {probe} lead", note, cap)
    return evidence


def _contrastive(found: Comparison, context: str) -> list[Evidence]:
    """Compare k-NN with and without the contrastive term, with the transformer probe as control."""
    evidence = []
    for plain, nce in RECONSTRUCTION.items():
        near, deep = (
            _pair(found, (nce, p), (plain, p), context, f"{nce} minus {plain}, k-NN")
            for p in ("knn", "transformer")
        )
        if near and deep:
            cap: Verdict | None = "not validated" if near.above and deep.above else None
            evidence.append(replace(near, note=f"transformer {deep.amount}", cap=cap))
    return evidence


def _sparse(found: Comparison, context: str) -> list[Evidence]:
    pairs = (
        _pair(found, ("sparse", p), ("full", p), context, f"sparse minus full, {p}")
        for p in found.probes
    )
    return [evidence for evidence in pairs if evidence]


def _gap(found: Comparison, context: str) -> list[Evidence]:
    """Compare attention minus k-NN with the gap between k-NN and the linear probe."""
    evidence = []
    for arm in RECONSTRUCTION:
        what = f"{arm}: attention minus k-NN"
        gap, closed = (
            _pair(found, (arm, probe), (arm, "knn"), context, what)
            for probe in ("linear", "attention")
        )
        if gap and closed and not gap.above:
            evidence.append(replace(closed, note="no gap to close", cap="no difference"))
        elif gap and closed:
            share = 100 * closed.estimate / gap.estimate
            note = f"attention closes {share:.0f} % of the gap of {gap.amount}"
            evidence.append(replace(closed, note=note))
    return evidence


_CLAIMS: tuple[tuple[str, str, Callable[[Comparison, str], list[Evidence]], str], ...] = (
    ("the question",
     "With {}, k-NN favors the sparse and contrastive fields while trained probes favor plain "
     "reconstruction.", _question,
     "Needs the full baseline and a sparse or contrastive field, under knn and under linear or "
     "transformer."),
    ("H1",
     "H1, {}: fields with the contrastive term beat reconstruction alone on k-NN but not on the "
     "transformer probe (equal steps).", _contrastive,
     "Needs a field with the contrastive term and the one without it (full and full+nce, or "
     "sparse and sparse+nce), under knn and transformer."),
    ("H2", "H2, {}: the field trained on sparse contexts beats the full baseline.", _sparse,
     "Needs the fields sparse and full."),
    ("H3",
     "H3, {}: attention over neighbors closes part of the gap from k-NN to the linear probe on "
     "reconstruction features.", _gap,
     "Needs the field full or sparse, under knn, attention and linear."),
)  # fmt: skip


def judge_all(found: Comparison) -> list[Finding]:
    """Compute the verdicts on the study's question and H1 to H3, in every context.

    What a probe at chance read of a field decides nothing, and is named.
    """
    cells = dict.fromkeys(
        _cell(r) for r in found.part(MAIN) if r["encoder"] in ("full", *CHALLENGERS)
    )
    lost = [cell for cell in cells if found.at_chance(cell)]
    judged = replace(found, records=[r for r in found.records if _cell(r) not in lost])
    findings = []
    for key, text, evidence, needs in _CLAIMS:
        for context in found.contexts:
            if key == "H2" and context == "full":
                continue
            here = [cell for cell in lost if cell.context == context]
            claim = Claim(f"{key}, {context}", text.format(_seen(context)), evidence)
            finding = judge(claim, judged, context)
            if here:
                verdict = "not judged" if finding.verdict == "not measured" else finding.verdict
                finding = replace(finding, verdict=verdict, note=_lost_words(here))
            elif finding.verdict == "not measured":
                finding = replace(finding, note=needs)
            findings.append(finding)
    return findings


def _cell(record: Mapping[str, Any]) -> Place:
    return Place(record["encoder"], record["probe"], record["context"])


def _lost_words(lost: Sequence[Place]) -> str:
    arms = {cell.probe: [o.encoder for o in lost if o.probe == cell.probe] for cell in lost}
    named = [f"{probe} on {', '.join(names)}" for probe, names in arms.items()]
    return f"at chance, no verdict: {'; '.join(named)}"


def _seen(context: str) -> str:
    seen = Context.parse(context)
    if seen.kind == "full":
        return "the whole image seen"
    return f"a share of {seen.fraction:g} of the pixels seen"


def context_words(context: str) -> str:
    """Write a context as a heading, such as "20 %, one layout"."""
    seen = Context.parse(context)
    if seen.kind == "full":
        return "full"
    kinds = {"per-image": "per image", "fixed": "one layout", "per-batch": "per batch"}
    seed = f", seed {seen.seed}" if seen.seed else ""
    return f"{100 * seen.fraction:g} %, {kinds[seen.kind]}{seed}"


def representations_document(found: Comparison, title: str | None = None) -> Document:
    """Compute the verdicts and make the report."""
    findings, facts, contexts = judge_all(found), found.facts, found.contexts
    said = "; ".join(f"{f.claim.key}: {f.verdict}" for f in findings)
    names = ", ".join(arm_of(n).title for n in found.encoders)
    shown = [(words, readable_command(str(facts.get(key) or ""))) for key, words in _FACTS.items()]
    named = facts.get("title") or f"Representations compared: {facts.get('dataset', '')}".strip()
    tables = Tables(found)
    return Document(
        title or str(named),
        f"Frozen features of {len(found.encoders)} encoders ({names}), read by "
        f"{', '.join(found.probes)}, {seed_words(found.seeds)}. Verdicts: {said}.",
        [
            Section("Does metric structure favor other fields than trained probes do?",
                    [tables.bars(), verdict_table("Verdicts", {"verdict": findings})]),
            *(Section(f"Probes, context {c}", tables.probes(c)) for c in contexts),
            Section("Geometry of the features",
                    [_purity_curves(found), *map(tables.geometry, contexts)]),
            Section("What the protocol itself does", [tables.protocol(p) for p in found.probes]),
            Section("Maps", [_map(found, c) for c in contexts]),
            Section("The fields themselves",
                    [_learning_curves(found), tables.errors(), _reconstructions(found)]),
            Section("How this was measured", [Words(_HOW)]),
        ],
        shown,
        numbers=tables.numbers,
        claims=[f.as_dict() for f in findings],
    )  # fmt: skip


Where = dict[str, Any]


def observations(found: Comparison) -> Iterator[tuple[Where, int, int, float | None]]:
    """Yield all measured values, with their place, seed and draw of the context."""
    for r in found.records:
        where = {key: r[key] for key in ("part", "encoder", "probe", "pool", "context")}
        for m in (ACCURACY, *CALIBRATION):
            yield where | {"measure": m.key}, r["seed"], r["draw"], r.get(m.key)
    for g in found.geometry:
        where = {"part": "geometry", "encoder": g["encoder"], "context": g["context"]}
        for m in GEOMETRY:
            yield where | {"measure": m.key}, g["seed"], g["draw"], g.get(m.key)
    for f in found.fields:
        for context, errors in f["errors"].items():
            where = {"part": "reconstruction", "encoder": f["encoder"], "context": context}
            for key, value in errors.items():
                yield where | {"measure": key}, f["seed"], 0, value


class Tables:
    """Means over seeds, draws averaged, and the tables that show them.

    `numbers` holds the means as rows, each with what it is of.
    """

    def __init__(self, found: Comparison) -> None:
        self.found = found
        values: dict[tuple[Any, ...], dict[int, dict[int, float]]] = {}
        for where, seed, draw, value in observations(found):
            if value is not None:
                values.setdefault(tuple(where.items()), {}).setdefault(seed, {})[draw] = value
        self.numbers: list[Where] = []
        for place, seeds in values.items():
            mean = mean_with_interval([float(np.mean([*v.values()])) for v in seeds.values()])
            self.numbers.append({
                **dict(place), "mean": mean.mean, "low": mean.low, "high": mean.high,
                "seeds": mean.n, "draws": len({d for v in seeds.values() for d in v}),
            })  # fmt: skip

    def pick(self, **where: Any) -> list[Where]:
        """Rows that have these values."""
        return [r for r in self.numbers if all(r.get(k) == v for k, v in where.items())]

    def table(
        self, title: str, caption: str, columns: Sequence[Measure], rows: Sequence[Where],
        across: str = "{measure}",
    ) -> Table | None:  # fmt: skip
        """Tabulate encoders, columns by the template `across`; the last row of a cell counts."""
        means = {(r["encoder"], across.format(**r)): _mean_of(r) for r in rows}
        known = [r["encoder"] for r in rows]
        names = dict.fromkeys(n for n in (*self.found.encoders, *known) if n in known)
        titles = {n: arm_of(n).title for n in names}
        return mean_table(title, caption, "encoder", titles, columns,
                          lambda n, m: means.get((n, m.key)))  # fmt: skip

    def accuracy(self, context: str) -> Table | None:
        """Accuracy of every encoder under every probe."""
        rows = self.pick(part=MAIN, measure="accuracy", context=context)
        return self.table(
            f"Encoder x probe, context {context}", f"Test accuracy. {self.over(rows)}. {BOLD}",
            [Measure(p, p, 3, True) for p in self.found.probes], rows, "{probe}",
        )  # fmt: skip

    def probes(self, context: str) -> list[Block | None]:
        """Accuracy, differences from the baseline, pooling and calibration."""
        found = self.found
        differences = difference_table(
            f"Points over the full baseline, context {context}",
            "Paired over test rows and seeds, with the 95 % interval of both.",
            "encoder",
            {arm_of(n).title: _over_full(found, n, context) for n in found.encoders if n != "full"},
            [replace(POINTS, key=p, title=p) for p in found.probes],
        )
        pooled = self.pick(part=POOLING, measure="accuracy", context=context)
        columns = dict.fromkeys(f"{r['probe']}, {r['pool']}" for r in pooled)
        pooling = self.table(
            f"Pooling, context {context}",
            f"What averaging the tokens of an image costs. {self.over(pooled)}.",
            [Measure(column, column, 3, True) for column in columns],
            pooled,
            "{probe}, {pool}",
        )
        return [
            self.accuracy(context),
            differences,
            pooling,
            Fold("Calibration, probe by probe", [self.of_probe(context, p) for p in found.probes]),
        ]

    def of_probe(self, context: str, probe: str) -> Table | None:
        """Other measures of a probe's predictions."""
        rows = self.pick(part=MAIN, probe=probe, context=context)
        return self.table(f"{probe}, context {context}", f"{self.over(rows)}.", CALIBRATION, rows)

    def geometry(self, context: str) -> Table | None:
        """Geometric measures of the test features."""
        rows = self.pick(part="geometry", context=context)
        n = max((int(g["n"]) for g in self.found.geometry if g["context"] == context), default=0)
        caption = f"Of pooled features of {n:,} test rows, cosine neighbors. {self.over(rows)}."
        return self.table(f"Geometry, context {context}", caption, GEOMETRY, rows)

    def protocol(self, probe: str) -> Table | None:
        """Show the effect of the pixel-hiding layout on a probe."""
        rows = self.pick(part=PROTOCOL, probe=probe, measure="accuracy")
        contexts = dict.fromkeys(r["context"] for r in rows)
        return self.table(
            f"Effect of the protocol on {probe}",
            "The same encoders and the same share of pixels: one layout for all images, a layout "
            "of its own for each image, and one layout a batch as in the original study, where "
            f"features carry the batch. {self.over(rows)}. Bold is the best of a column.",
            [Measure(c, context_words(c), 3, True) for c in contexts],
            rows,
            "{context}",
        )

    def errors(self) -> Table | None:
        """Reconstruction errors of each field on the test images."""
        rows = self.pick(part="reconstruction")
        seen = dict.fromkeys((r["context"], r["measure"]) for r in rows)
        return self.table(
            "Reconstruction of test images",
            "PSNR of mean squared errors over all pixels and channels, data range 1; hidden pixels "
            f"are those outside the context. {self.over([])}.",
            [Measure(f"{c}: {m}", f"{c}: {ERRORS[m]}", 2, True) for c, m in seen],
            rows, "{context}: {measure}",
        )  # fmt: skip

    def over(self, rows: Sequence[Where]) -> str:
        """Describe the numbers of seeds and draws; by probe if they differ."""
        seeds = self.found.seeds
        words = f"Mean ± half the 95 % t-interval over {seed_words(seeds)}"
        words = words if len(seeds) > 1 else f"One seed ({seeds[0]})"
        named: dict[int, dict[str, None]] = {}
        for row in rows:
            if row["context"] != "full":
                named.setdefault(row["draws"], {})[str(row.get("probe"))] = None
        parts = []
        for n, names in named.items():
            of = f" ({', '.join(names)})" if len(named) > 1 else ""
            parts.append(f"{n} draw{'s' * (n > 1)}{of}")
        return f"{words}, {', '.join(parts)} of the context each" if parts else words

    def bars(self) -> Picture:
        """Draw accuracies of the study's five representations, a panel per context and probe."""
        found = self.found
        names = sorted(found.encoders, key=lambda n: FIVE.index(n) if n in FIVE else len(FIVE))
        colors = {arm_of(n).title: COLORS.get(n, OTHER_COLOR) for n in names}
        panels = []
        for c, p in product(found.contexts, found.probes):
            rows = self.pick(part=MAIN, measure="accuracy", context=c, probe=p)
            means = {r["encoder"]: _mean_of(r) for r in rows}
            shown = {arm_of(n).title: means.get(n) for n in names}
            panels.append(Bars(f"{p}, {context_words(c)}", shown, colors, "{:.3f}", 1.25))
        heading = f"{found.facts.get('dataset', '')}: accuracy of frozen features".strip()
        size = (9.4, 0.6 + 0.24 * len(names))
        figure = chart(panels, size, columns=len(found.probes), heading=heading)
        caption = (
            "Test accuracy with 95 % t-intervals over seeds where there is more than one; they are "
            "not paired: the tables of differences are."
        )
        return picture(figure, "five-bars", "Bars of accuracy by encoder and probe.", caption)


def _mean_of(row: Where) -> Mean:
    return Mean(row["mean"], None if row["high"] is None else row["high"] - row["mean"], 1)


def _over_full(
    found: Comparison, encoder: str, context: str
) -> Callable[[Measure], PairedDifference | None]:
    return lambda m: found.difference(Place(encoder, m.key, context), Place("full", m.key, context))


def _learning_curves(found: Comparison) -> Picture | None:
    """Training losses of every field against its steps, both stages, means over seeds."""
    rows = [{"encoder": f["encoder"], **row} for f in found.fields for row in f["history"]]
    panels = [
        _curves(rows, "reconstruction error of the batches", "steps", "step", "train_mse", "y"),
        _curves(rows, "contrastive term, nats", "steps", "step", "nce"),
    ]
    caption = (
        "Means over seeds. Finetuned fields share their first stage with their control, which "
        "goes on for as many steps without the contrastive term."
    )
    return _side_by_side("learning", "Learning curves of the fields.", panels, caption)


def _purity_curves(found: Comparison) -> Picture | None:
    """Share of neighbors with the same label against their number."""
    panels = []
    for context in found.contexts:
        rows = [
            {"encoder": g["encoder"], "k": int(k), "purity": value}
            for g in found.geometry
            if g["context"] == context
            for k, value in g["purity_curve"].items()
        ]
        title = f"neighbors with own label, {context_words(context)}"
        panels.append(_curves(rows, title, "neighbors", "k", "purity", "x"))
    caption = "Purity of the k nearest other test rows by cosine; means over seeds and draws."
    return _side_by_side("purity", "Purity against the number of neighbors.", panels, caption)


def _curves(
    rows: Sequence[Mapping[str, Any]], title: str, words: str, x: str, key: str, log: str = ""
) -> Lines | None:
    """Draw one quantity of every encoder against another; None without values."""
    lines = {}
    for name in dict.fromkeys(row["encoder"] for row in rows):
        points = points_of([r for r in rows if r["encoder"] == name], x, key)
        if points:
            lines[arm_of(name).title] = Line(points, COLORS.get(name, OTHER_COLOR), ".")
    return Lines(title, lines, words, log=log) if lines else None


def _side_by_side(
    name: str, alt: str, panels: Sequence[Lines | None], caption: str
) -> Picture | None:
    shown = [panel for panel in panels if panel is not None]
    if not shown:
        return None
    return picture(chart(shown, (max(7.2, 4.7 * len(shown)), 3.0)), name, alt, caption)


def _map(found: Comparison, context: str) -> Picture | None:
    """Map the test features of every encoder, in the color of their class."""
    maps = {
        m["encoder"]: (m, found.arrays[f"map{i}"], found.arrays[f"map{i}_labels"])
        for i, m in enumerate(found.maps)
        if (m["context"], m["way"]) == (context, "tsne")
    }
    names = [n for n in found.encoders if n in maps]
    if not names:
        return None
    first, _, labels = maps[names[0]]
    panels = [
        Points(f"{arm_of(n).title}  (trust {m['trustworthiness']:.3f})", found.facts["classes"],
               points, codes)
        for n, (m, points, codes) in ((n, maps[n]) for n in names)
    ]  # fmt: skip
    heading = f"t-SNE of test features, {context_words(context)} context"
    figure = chart(panels, (9.4, 2.9), columns=min(3, len(names)), heading=heading, legend="class")
    caption = (
        f"{len(labels):,} test rows of seed {first['seed']}. A map is a picture, no evidence: "
        "numbers of the space itself stand in the table of geometry. Trust: trustworthiness of the "
        "map at 12 neighbors, 1 where no neighbor on it is false."
    )
    words = f"Maps of the features of {', '.join(names)}."
    return picture(figure, f"map-tsne-{slug(context)}", words, caption)


def _reconstructions(found: Comparison) -> Picture | None:
    """Test images and each field's reconstructions, one block of rows per context."""
    kept, arrays = found.pictures, found.arrays
    if not kept:
        return None
    lines = [("original", "originals")]
    for context, names in kept["contexts"].items():
        lines.append((f"seen, {context}", f"seen {context}"))
        lines += [(f"{arm_of(n).title}, {context}", f"field {context} {n}") for n in names]
    panels: list[Panel] = []
    for title, key in lines:
        for place, image in enumerate(np.clip(arrays.get(key, ()), 0.0, 1.0)):  # (C, H, W)
            pixels = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
            panels.append(Pixels(pixels, label="" if place else title))
    heading = f"Reconstructions of test images, seed {kept['seed']}"
    figure = chart(panels, (9.4, 0.75), columns=len(arrays["originals"]), heading=heading)
    caption = (
        "Images of the test part, never trained on. Hidden pixels are shown black; fields "
        "reconstruct all pixels."
    )
    return picture(figure, "reconstructions", "Test images and their reconstructions.", caption)
