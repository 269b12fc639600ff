"""Figure of the probes page: five probes on three encoders of scikit-learn's digits.

python examples/probes_figure.py [--out docs/images/probes.png]
"""

import argparse
from pathlib import Path
from typing import Any

from nearwise_lab.data import load_dataset
from nearwise_lab.nn.field import make_perceiver
from nearwise_lab.probing import Patches, Pixels, RandomInit, evaluate, probe_data
from nearwise_lab.report.runs import probe_figure

ENCODERS: dict[str, tuple[Any, str]] = {
    "pixels": (Pixels((8, 8), 1), "flatten"),
    "mean patch": (Patches(4, (8, 8), 1), "mean"),
    "untrained field": (RandomInit(lambda: make_perceiver("digits")), "mean"),
}
PROBES = ("knn", "knn-softmax", "attention-features", "attention", "linear")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images/probes.png"))
    args = parser.parse_args()
    data = probe_data(load_dataset("digits-images"), seed=0)
    records = []
    for name, (encoder, pool) in ENCODERS.items():
        records += evaluate({name: encoder}, data, probes=PROBES, pools=[pool])
    for record in records:
        record["pool"] = "mean"  # one row per encoder
        print(record["encoder"], record["probe"], f"{100 * record['accuracy']:.1f}")
    title = "What probes read from three encoders of digits (540 test images)"
    print(probe_figure(records, args.out, title))


if __name__ == "__main__":
    main()
