"""Put the numbers of results/stream.json and results/few_shot.json into their pages in docs/.

python benchmarks/learning_tables.py
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS, DOCS = ROOT / "benchmarks" / "results", ROOT / "docs"
TITLES = {"classes": "classes in turn", "drift": "drift"}


def between(row: dict[str, Any], name: str, digits: int, factor: float = 1.0) -> str:
    """Mean and its 95 % interval, or nothing."""
    found = row.get(name)
    if found is None:
        return ""
    if found.get("low") is None:
        return f"{factor * found['mean']:.{digits}f}"
    low, high = factor * found["low"], factor * found["high"]
    return f"{factor * found['mean']:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def stream_table(rows: list[dict[str, Any]]) -> str:
    """One line a stream and method."""
    lines = [
        "| stream | method (seeds) | accuracy | against refitting "
        "| NLL | ECE | seconds | % of the refits |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            TITLES[row["stream"]],
            f"{row['method']} ({len(row['seeds'])})",
            between(row, "accuracy", 3),
            between(row, "accuracy_difference", 3),
            f"{row['nll']['mean']:.3f}",
            f"{row['ece']['mean']:.3f}",
            f"{row['seconds']['mean']:.1f}",
            between(row, "share_of_refits", 1, 100.0),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def few_shot_table(rows: list[dict[str, Any]]) -> str:
    """One line a data set, number of rows and method."""
    lines = [
        "| data | rows per class | method | accuracy | attention is ahead by | NLL | ECE |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ahead = row.get("attention_is_ahead_by")
        cells = [
            row["dataset"],
            str(row["shot"]),
            f"**{row['method']}**" if ahead is None else row["method"],
            f"{row['accuracy']['mean']:.3f} ± {row['accuracy']['half']:.3f}",
            "" if ahead is None else f"{ahead['mean']:.3f} ± {ahead['half']:.3f}",
            f"{row['nll']['mean']:.3f}",
            f"{row['ece']:.3f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Replace what stands between the marks of each page."""
    for name, page, table in (
        ("stream", "streams", stream_table),
        ("few_shot", "few-shot", few_shot_table),
    ):
        path, source = DOCS / f"{page}.md", RESULTS / f"{name}.json"
        if not source.exists():
            continue
        body = table(json.loads(source.read_text())["results"])
        marks = re.compile(r"(<!-- table -->\n).*?(<!-- end of table -->)", re.DOTALL)

        def filled(marked: re.Match[str], body: str = body) -> str:
            return marked[1] + body + "\n" + marked[2]

        path.write_text(marks.sub(filled, path.read_text()))


if __name__ == "__main__":
    main()
