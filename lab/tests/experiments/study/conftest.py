"""Digits as images, small enough to train on in a second."""

import pytest
from nearwise_lab.data import load_dataset
from nearwise_lab.experiments.study import resolve_preset, run_experiment, train_replay
from nearwise_lab.experiments.study.inputs import make_inputs

QUICK = {
    "backbone": "mlp", "pretrained": False, "max_rows": 400, "max_test_rows": 150,
    "epochs": 6, "batch_size": 64,
    "dim": 32, "n_neighbors": 8, "lr": 5e-3, "refresh_every": 2, "cnn_epochs": 2,
    "cnn_batch_size": 64, "warmup_epochs": 0.0, "sweep_k": [1, 5, 10], "adaptive_k_max": 30,
    "noise_rates": [0.0, 0.3], "tail_ratios": [1.0, 0.1],
}  # fmt: skip


@pytest.fixture(scope="session")
def digits():
    """Give scikit-learn's digits as uint8 images."""
    return load_dataset("digits-images")


@pytest.fixture(scope="session")
def quick():
    """Give settings that train in a second."""
    return dict(QUICK)


@pytest.fixture
def run(tmp_path):
    """Give a function that runs an experiment silently, in a folder of the test."""

    def call(name, dataset, preset, *, out=tmp_path, seeds=(0,), config=None, **options):
        return run_experiment(
            name, dataset, preset, seeds, out,
            config=config, device="cpu", progress=False, command="test", **options,
        )  # fmt: skip

    return call


@pytest.fixture(scope="session")
def make_preset(digits):
    """Give a function from a version and changes to a quick preset."""

    def make(name="v0.5", **changes):
        overrides = {**QUICK, **changes}
        return resolve_preset(name, digits.name, digits.kind, len(digits), overrides=overrides)

    return make


@pytest.fixture(scope="session")
def trained(digits, make_preset):
    """Give one trained replay of v0.5; read only."""
    preset = make_preset(mixup_alpha=0.0, epochs=12)
    return train_replay(make_inputs(digits, preset, 0), preset)
