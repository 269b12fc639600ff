"""Trained neural fields are found again."""

from nearwise_lab.field_training.files import find_models
from nearwise_lab.nn.field import make_perceiver
from nearwise_lab.nn.field.config import WEIGHTS


def test_models_are_found_by_what_they_say_and_not_by_their_names(tmp_path):
    model = make_perceiver("digits", random_state=0)
    model.run = {"objective": "sparse", "seed": 0, "step": 20}
    model.save(tmp_path / "a")
    for name, run in {
        "sparse-best": {"objective": "reconstruction", "seed": 0, "step": 10},
        "deep/er": {"objective": "sparse", "seed": 0, "step": 90},
        "c": {"objective": "sparse", "seed": 1, "step": 90},
    }.items():
        model.run = run
        model.save(tmp_path / name)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / WEIGHTS).write_bytes(b"{}")
    found = find_models(tmp_path, {"objective": "sparse", "seed": 0})
    assert [one.folder.relative_to(tmp_path).as_posix() for one in found] == ["deep/er", "a"]
    assert find_models(tmp_path, {"objective": "nce"}) == []
    assert find_models(tmp_path / "nowhere", {}) == []
