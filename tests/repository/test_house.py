"""The house does not grow unnoticed: a measure that rises needs a line in the changelog."""

import ast
import json

import pytest


@pytest.fixture
def house(load_benchmark):
    return load_benchmark("house")


def test_no_measure_rises_without_a_line_in_the_changelog(house):
    now = house.measure()
    record = house.recorded()
    assert record.keys() == now.keys()
    changelog = house.CHANGELOG.read_text(encoding="utf-8")
    assert house.rises(now, record, changelog) == []


LINE = "- library lines 46,000 -> 46,120: ridge regression as a base"


def changelog(*lines: str, section: str = "### House") -> str:
    return "\n".join(["# Changelog", "", "## [Unreleased]", "", section, *lines, "", "### Fixed"])


def test_a_rise_is_refused_with_its_size_and_the_line_that_would_excuse_it(house):
    (found,) = house.rises({"library lines": 46_120}, {"library lines": 46_000}, changelog())
    assert found.startswith("library lines rose by 120, from 46,000 to 46,120.")
    assert "`- library lines 46,000 -> 46,120: reason`" in found
    assert "benchmarks/house.py --record" in found


@pytest.mark.parametrize(
    ("text", "value", "refused"),
    [
        (changelog(LINE), 46_120, False),
        (changelog(LINE), 46_100, False),
        (changelog(LINE), 46_121, True),  # more than the line says
        (changelog(LINE), 45_000, False),
        (changelog(LINE.replace("46,000 ->", "45,900 ->")), 46_120, True),  # of an older record
        (changelog(LINE.partition(":")[0] + ": "), 46_120, True),  # no reason
        (changelog(LINE.replace("lines", "modules")), 46_120, True),
        (changelog(LINE, section="### Added"), 46_120, True),
        ("\n## [Unreleased]\n\n## [0.1.0]\n\n### House\n" + LINE, 46_120, True),  # released
    ],
)
def test_a_line_excuses_the_rise_that_it_names(house, text, value, refused):
    now, record = {"library lines": value, "heads": 2}, {"library lines": 46_000, "heads": 2}
    assert bool(house.rises(now, record, text)) == refused


@pytest.fixture
def of_two_measures(house, tmp_path, monkeypatch):
    """A house of two measures, with a record and a changelog of its own."""
    now = {"library lines": 46_120, "heads": 1}
    rows = [{"measure": "library lines", "recorded": 46_000}, {"measure": "heads", "recorded": 2}]
    (tmp_path / "house.json").write_text(json.dumps({"rows": rows}))
    (tmp_path / "CHANGELOG.md").write_text(changelog())
    monkeypatch.setattr(house, "RECORD", tmp_path / "house.json")
    monkeypatch.setattr(house, "CHANGELOG", tmp_path / "CHANGELOG.md")
    monkeypatch.setattr(house, "measure", lambda: now)
    monkeypatch.setattr(house, "import_time", dict)
    monkeypatch.setattr(house, "circles", dict)
    monkeypatch.setattr("sys.argv", ["house.py", "--record"])
    return house


def test_a_rise_is_recorded_only_with_its_line(of_two_measures, capsys):
    before = of_two_measures.RECORD.read_bytes()
    assert of_two_measures.main() == 1
    assert "library lines rose by 120" in capsys.readouterr().out
    assert of_two_measures.RECORD.read_bytes() == before
    of_two_measures.CHANGELOG.write_text(changelog(LINE))
    assert of_two_measures.main() == 0
    assert of_two_measures.recorded() == {"library lines": 46_120, "heads": 1}


def test_a_target_that_is_missed_is_shown_as_missed(of_two_measures, capsys):
    of_two_measures.main()
    lines, heads = capsys.readouterr().out.splitlines()[:2]
    assert lines.split() == ["library", "lines", "46120", "46000", "46000", "missed"]
    assert heads.split() == ["heads", "1", "2", "1"]


def test_what_is_counted_in_source_and_docs(house):
    tree = ast.parse(
        "isinstance(a, ImageEncoder)\nisinstance(a, b.TableModels | TableNetworks)\n"
        "isinstance(a, (int, MemoryViews))\nisinstance(a, DataFrame)\nisinstance(a, Mapping)\n"
        "match a:\n    case EncodedImages():\n        pass\n    case int():\n        pass\n"
    )
    assert house.kinds_of_rows(tree) == 4
    tree = ast.parse(
        "class HeadOutput:\n    def joined(self) -> HeadOutput: ...\n"
        "class TestNeighborHead: ...\nclass Other:\n    def forward(self) -> HeadOutput: ...\n"
        "class Plain:\n    def forward(self) -> Tensor: ...\n"
    )
    assert house.heads(tree) == 2
    calls = "a = ClassPredictor(1)\nb: ClassPredictor = c()\nm.ClassPredictor()"
    assert house.pipelines(ast.parse(calls)) == 2
    tree = ast.parse("class A:\n    b: int = 1\n    c = 2\n    d: int\nclass B(A):\n    d: int = 3")
    assert house.fields([tree], "A", "B") == 2  # one is declared again
    text = "where rows are held\nout once, it holds rows out once; held-out-once; held out twice"
    assert house.held_out_once(text) == 3


def test_the_way_of_a_call_counts_files_entered_and_steps_between_them(house):
    from nearwise import names

    assert house.way_of_a_row(lambda: names.did_you_mean("a", ["b"])) == (1, 0)
    assert house.way_of_a_row(lambda: sorted([2, 1])) == (0, 0)


def test_lines_that_use_a_private_name_of_the_classifier_are_counted(house):
    own = house.SOURCE / "estimators" / "classifier.py"
    trees = {
        own: ast.parse("class C:\n    def _change(self):\n        self._lock.acquire()\n"),
        own.with_name("live.py"): ast.parse("a._lock\na._other\nself._lock\nb(a._change, a._lock)"),
        house.SOURCE / "memory" / "bank.py": ast.parse("a._change()"),
    }
    assert house.private_reaches(trees) == 2
