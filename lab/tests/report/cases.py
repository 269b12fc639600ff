"""Comparisons with a known truth: answers are drawn, so that verdicts can be foretold."""

import numpy as np
from nearwise_lab.experiments.representations import Comparison
from nearwise_lab.probing.measures import packed

N_TEST = 400
PROBES = ("knn", "attention", "linear", "transformer")
ENCODERS = ("pixels", "random", "sparse", "full", "full+nce", "sparse+nce")


def comparison(rates, *, seeds=(0, 1, 2), draws=(0, 1, 2), contexts=("full", "0.2"), **more):
    """Draw right and wrong answers at `rates`: (encoder, probe, context) to accuracy."""
    records = []

    def add(part, encoder, probe, pool, context, draw, seed):
        rng = np.random.default_rng([seed, draw, len(records)])
        rate = rates.get((encoder, probe, context), rates.get((encoder, probe), 0.5))
        # the same rows are hard for everybody, as in truth
        hard = np.random.default_rng(9).random(N_TEST)
        right = 0.8 * hard + 0.2 * rng.random(N_TEST) < np.quantile(0.8 * hard, rate) + 0.1
        records.append({
            "part": part, "encoder": encoder, "probe": probe, "pool": pool, "context": context,
            "draw": draw, "seed": seed, "correct": packed(right), "n": N_TEST, "n_classes": 10,
            "accuracy": float(right.mean()), "top5": None, "nll": 1 - rate, "brier": 1 - rate,
            "ece": 0.05, "aurc": 0.1,
        })  # fmt: skip

    for seed in seeds:
        for encoder in ENCODERS:
            for context in contexts:
                for draw in draws if context != "full" else draws[:1]:
                    for probe in PROBES:
                        pool = "tokens" if probe == "transformer" else "mean"
                        add("main", encoder, probe, pool, context, draw, seed)
            for context in ("0.2:fixed", "0.2", "0.2:batch"):
                add("protocol", encoder, "knn", "mean", context, 0, seed)
            add("pooling", encoder, "knn", "flatten", "full", 0, seed)
    return Comparison(records, **more)


def flat(value=0.7):
    """Every encoder as good as every other under every probe."""
    return {(e, p): value for e in ENCODERS for p in PROBES}


def everything():
    """Give whatever the report can show beside the records."""
    rng = np.random.default_rng(0)
    geometry, maps, arrays = [], [], {}
    for seed in (0, 1, 2):
        for encoder in ENCODERS:
            for context in ("full", "0.2"):
                geometry.append({
                    "encoder": encoder, "context": context, "seed": seed, "draw": 0, "n": 100,
                    "purity": 0.8, "purity_curve": {"1": 0.9, "10": 0.8, "50": 0.6},
                    "silhouette": 0.2,
                })  # fmt: skip
                if seed == 0:
                    arrays[f"map{len(maps)}"] = rng.normal(size=(30, 2))
                    arrays[f"map{len(maps)}_labels"] = np.arange(30) % 10
                    maps.append({"encoder": encoder, "context": context, "seed": 0, "way": "tsne",
                                 "trustworthiness": 0.95})  # fmt: skip
    fields = [
        {"encoder": e, "seed": s,
         "errors": {"full": {"psnr": 20.0, "psnr_hidden": None},
                    "0.2": {"psnr": 15.0, "psnr_hidden": 14.0}},
         "history": [{"step": i, "train_mse": 1 / (i + 1), **({"nce": 3.0} if "nce" in e else {})}
                     for i in range(5)]}
        for e in ("sparse", "full", "full+nce", "sparse+nce") for s in (0, 1, 2)
    ]  # fmt: skip
    shown = ("originals", "seen 0.2", *(f"field {c} {e}" for c in ("full", "0.2")
                                        for e in ("sparse", "full")))  # fmt: skip
    arrays |= {name: rng.random((4, 1, 8, 8)) for name in shown}
    pictures = {"seed": 0, "contexts": {c: ["sparse", "full"] for c in ("full", "0.2")}}
    facts = {"dataset": "digits", "classes": [str(i) for i in range(10)],
             "command": "x/__main__.py field compare"}  # fmt: skip
    return {"geometry": geometry, "maps": maps, "fields": fields, "pictures": pictures,
            "facts": facts, "arrays": arrays}  # fmt: skip
