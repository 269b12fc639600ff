"""Saved fields: bit for bit the same, refused by what differs."""

import pytest
import torch
from nearwise_lab.nn.field import PerceiverAutoencoder, find_models, make_perceiver
from nearwise_lab.nn.field.config import WEIGHTS


@pytest.fixture
def saved(tmp_path):
    model = make_perceiver("digits", random_state=1)
    model.run = {"objective": "sparse", "seed": 0, "step": 40}
    model.save(tmp_path / "a")
    return model, tmp_path / "a"


def test_a_saved_model_comes_back_bit_for_bit(saved):
    model, folder = saved
    images = torch.rand(3, 1, 8, 8)
    back = PerceiverAutoencoder.load(folder)
    assert torch.equal(back.encode(images), model.eval().encode(images))
    assert torch.equal(back.reconstruct(images), model.reconstruct(images))
    assert (back.config, back.run) == (model.config, model.run)


def test_models_are_found_by_what_they_say_and_not_by_their_names(saved, tmp_path):
    model, _ = saved
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


def test_weights_that_do_not_fit_are_refused_by_name(saved):
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    file = saved[1] / WEIGHTS
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    weights = load_file(file)
    weights["strange"] = weights.pop("fourier.frequencies")
    save_file(weights, file, metadata=metadata)
    with pytest.raises(ValueError, match=r"(?s)Missing.*fourier\.frequencies.*Unexpected.*strange"):
        PerceiverAutoencoder.load(saved[1])


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="There is no neural field"):
        PerceiverAutoencoder.load(tmp_path)


def test_a_damaged_file_is_refused(saved):
    (saved[1] / WEIGHTS).write_bytes((saved[1] / WEIGHTS).read_bytes()[:100])
    with pytest.raises(ValueError, match="is damaged"):
        PerceiverAutoencoder.load(saved[1])


def test_a_write_that_fails_leaves_the_former_model(saved, monkeypatch):
    folder = saved[1]
    before = PerceiverAutoencoder.load(folder)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        make_perceiver("digits", random_state=2).save(folder)
    after = PerceiverAutoencoder.load(folder)
    pairs = zip(before.parameters(), after.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert sorted(path.name for path in folder.iterdir()) == [WEIGHTS]
