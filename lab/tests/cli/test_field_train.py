"""`nearwise field train`: from the command to the model, its figures and what is said."""

import os
import subprocess
import sys
import time

import pytest
import torch
from nearwise_lab.nn.field import PerceiverAutoencoder, find_models

TINY = (
    "--epochs", 1, "--finetune-epochs", 1, "--limit", 120, "--set", "n_anchors=4",
    "--set", "model={latent_dims: [8], num_latents: 4, head_dim: 4, num_process_layers: 0}",
)  # fmt: skip


@pytest.mark.slow
def test_a_contrastive_field_trains_what_it_goes_on_from_and_is_found_again(nearwise, tmp_path):
    command = ("field", "train", "--objective", "sparse-nce", "-o", tmp_path, *TINY)
    done = nearwise(*command)
    assert done.exit_code == 0, done.err
    rows = [line.split()[:2] for line in done.out.splitlines()]
    assert ["sparse", "2"] in rows and ["sparse-nce", "4"] in rows
    found = find_models(tmp_path, {"dataset": "digits-images", "finished": True})
    assert [one.run["objective"] for one in found] == ["sparse-nce", "sparse"]
    assert {p.name for p in found[0].folder.glob("*.png")} == {"curve.png", "reconstructions.png"}
    again = nearwise(*command)
    assert "trained before" in again.err and again.out == done.out


def test_the_control_takes_as_many_steps(nearwise, tmp_path):
    done = nearwise(
        "field", "train", "--objective", "sparse", "--control", "-o", tmp_path, "-q", *TINY
    )
    assert (done.exit_code, done.err) == (0, "")
    assert find_models(tmp_path, {})[0].run["stages"] == ["sparse:1", "sparse:1"]
    assert find_models(tmp_path, {})[0].run["step"] == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--set", "n_anchor=3"), "Did you mean 'n_anchors'"),
        (("--set", "epochs=3"), "write --epochs 3"),
        (("--set", "context=1.5"), "context"),
        (("--objective", "nce", "--control"), "goes with reconstruction or sparse"),
        (("--dataset", "cifar11"), "'cifar11' is not an image set"),
    ],
)
def test_a_mistake_is_told_in_a_line(nearwise, tmp_path, options, said):
    done = nearwise("field", "train", "-o", tmp_path, *options)
    assert done.exit_code == 2
    assert said in done.err and "Traceback" not in done.err


def test_digits_mean_their_images_as_in_the_comparison(nearwise, tmp_path):
    done = nearwise("field", "train", "-d", "digits", "-o", tmp_path, *TINY)
    assert done.exit_code == 0, done.err
    assert len(find_models(tmp_path, {"dataset": "digits-images"})) == 1


def test_the_help_shows_how(nearwise):
    done = nearwise("field", "train", "--help")
    assert "nearwise field train --objective sparse-nce" in done.out


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_weights_of_an_unbroken_one(nearwise, tmp_path):
    options = ("--objective", "sparse", "-q", *TINY[2:], "--epochs", 15)
    command = [sys.executable, "-m", "nearwise", "field", "train", "-o", tmp_path / "a"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*map(str, (*command, *options))], env=environment)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "a").rglob("manifest.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.2)
    process.kill()
    process.wait()
    assert not find_models(tmp_path / "a", {"finished": True}), "it was over before the kill"
    for folder in ("a", "b"):
        done = nearwise("field", "train", "-o", tmp_path / folder, *options)
        assert done.exit_code == 0, done.err
    one, other = (
        PerceiverAutoencoder.load(find_models(tmp_path / folder, {})[0].folder)
        for folder in ("a", "b")
    )
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
