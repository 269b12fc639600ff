"""Build the documentation site from docs/, lab/docs/ and the docstrings, offline.

    python docs/site/build.py [OUT]      # default: runs/site

Pages keep the places that they have in the repository, so that one link serves both. A link to a
file that is no page leads to the repository. Warnings are errors.
"""

import re
import shutil
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from reference import write_reference
from sphinx.cmd.build import main as sphinx

import nearwise

SITE = Path(__file__).parent
ROOT = SITE.parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
REPOSITORY = PROJECT["urls"]["Source"] + "/blob/main"
PARTS = {
    "Tutorials": ("docs/tutorials/quickstart", "gallery/index"),
    "How to": (
        "docs/how-to/tables", "docs/how-to/numbers", "docs/how-to/embeddings",
        "docs/how-to/images", "docs/how-to/photographs", "docs/how-to/text",
        "docs/how-to/sparse", "docs/how-to/several", "docs/how-to/explain", "docs/how-to/page",
        "docs/how-to/change",
        "docs/how-to/wrong-labels", "docs/how-to/groups", "docs/how-to/trust",
        "docs/how-to/serve", "docs/how-to/large", "docs/how-to/layers", "docs/how-to/probes",
        "docs/how-to/coming-from",
    ),
    "Explanation": (
        "docs/explanation/method", "docs/explanation/pretrained-head", "docs/explanation/numbers",
        "docs/explanation/trust", "docs/explanation/wrong-labels", "docs/explanation/memory",
        "docs/explanation/limits", "docs/explanation/choices",
        "docs/explanation/measuring", "docs/explanation/architecture",
        "docs/explanation/glossary", "docs/roadmap",
    ),
    "Reference": (
        "docs/reference/api", "docs/reference/data", "docs/reference/http",
        "docs/reference/layers", "docs/reference/model-folder", "docs/reference/stability",
        "reference/python", "reference/commands", "reference/openapi",
        "CHANGELOG", "CONTRIBUTING", "SECURITY",
    ),
    "Results": (
        "docs/results/summary", "docs/results/model", "docs/results/wrong-labels",
        "docs/results/trust", "docs/results/groups", "docs/results/memory", "docs/results/layers",
        "benchmarks/RESULTS",
    ),
    "Lab": (
        "lab/README", "lab/docs/experiments", "lab/docs/layers", "lab/docs/long-tail",
        "lab/docs/neural-fields", "lab/docs/probes", "lab/docs/representations",
        "lab/docs/vit-training", "lab/docs/api", "examples/review_labels",
    ),
}  # fmt: skip
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def pages() -> list[Path]:
    """Give the written pages, by their places in the repository."""
    listed = (name for names in PARTS.values() for name in names)
    found = [Path(f"{name}.md") for name in listed if (ROOT / f"{name}.md").exists()]
    unlisted = {path.relative_to(ROOT) for path in ROOT.glob("docs/**/*.md")} - set(found)
    if unlisted:
        raise SystemExit(f"Add to PARTS of docs/site/build.py: {sorted(map(str, unlisted))}")
    return found


def write_pages(sources: Path) -> None:
    """Copy pages and their pictures; links to other files lead to the repository."""
    known = set(pages())
    for page in [*known, Path("README.md")]:

        def led(link: re.Match[str], folder: Path = (ROOT / page).parent) -> str:
            target = (folder / link[2]).resolve()
            if "://" in link[2] or not target.is_relative_to(ROOT):
                return link[0]
            place = target.relative_to(ROOT)
            if place in known or place.suffix in {".gif", ".png", ".svg"}:
                return link[0]
            if place == Path("README.md"):
                up = "../" * len(folder.relative_to(ROOT).parts)
                return f"{link[1]}{up}index.md{link[3]}"
            return f"{link[1]}{REPOSITORY}/{place}{link[3]}"

        to = sources / page
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(LINK.sub(led, (ROOT / page).read_text("utf-8")), "utf-8")
    for folder in ("docs/images", "lab/docs/images"):
        shutil.copytree(ROOT / folder, sources / folder)
    shutil.copytree(ROOT / "examples/gallery", sources / "gallery_sources")


def write_parts(sources: Path) -> None:
    """Write a page per part of the site, and the start page: README, with the parts in its menu."""
    parts = []
    for title, names in PARTS.items():
        parts.append(title.lower().replace(" ", "-"))
        text = f"# {title}\n\n{toctree(names)}"
        (sources / f"{parts[-1]}.md").write_text(text, "utf-8")
    start = (sources / "README.md").rename(sources / "index.md")
    with start.open("a", encoding="utf-8") as file:
        file.write("\n" + toctree(parts, ":hidden:"))


def toctree(names: Iterable[str], *options: str) -> str:
    """Give a table of contents."""
    return "\n".join(["```{toctree}", ":maxdepth: 1", *options, "", *names, "```", ""])


def write_summary(sources: Path, out: Path) -> None:
    """Write llms.txt: one line per page, for programs that read before they answer."""
    lines = ["# nearwise", "", "> " + nearwise.__doc__.partition("\n")[0], ""]  # type: ignore[union-attr]
    for title, names in PARTS.items():
        lines += [f"## {title}", ""]
        for name in names:
            if (page := sources / f"{name}.md").exists():
                heading = re.search(r"^# (.*)", page.read_text("utf-8"), re.MULTILINE)
                lines.append(f"- [{heading[1] if heading else name}]({name}.html)")
        lines.append("")
    (out / "llms.txt").write_text("\n".join(lines), "utf-8")


def main() -> int:
    """Make the sources, and run Sphinx."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "runs" / "site"
    sources = out / "sources"
    shutil.rmtree(sources, ignore_errors=True)
    write_pages(sources)
    write_parts(sources)
    write_reference(sources / "reference")
    strict = ["-W", "--keep-going", "-q"]
    failed = sphinx(["-b", "html", "-c", str(SITE), *strict, str(sources), str(out / "html")])
    if not failed:
        write_summary(sources, out / "html")
        print(f"Wrote {out / 'html' / 'index.html'}")
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
