"""Two processes that train together end with the same weights, near those of one."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from nearwise.training import SelfCorrection, TrainingRows, train_embedder
from nearwise.training.embedder import check_shares
from nearwise.training.processes import Processes, join_processes
from tests.training.cases import blobs, quick, small_network

ROOT = Path(__file__).resolve().parents[2]
CACHED = {"candidate_keys": "cached", "cache_momentum": 0.5, "n_candidates": None}


def table_run(correction=None):
    """Plain gradients without dropout and batch statistics: sums over processes are exact."""
    network = small_network(head=True)
    config = quick(epochs=3, ce_weight=0.5, fit_scale=True, optimizer="sgd")
    result = train_embedder(
        network, blobs(), blobs(40, 1, 1000), config, seed=0, correction=correction
    )
    return network, result


def corrected_run():
    """The same, with labels that follow the predictions of both processes."""
    likelihood = torch.full((len(blobs()), 3), 0.2)
    return table_run(SelfCorrection(likelihood.scatter(1, blobs().labels[:, None], 0.6)))


def mixed_run(checkpoint=None, progress=None):
    """All that differs between processes: dropout, statistics, views, MixUp, the cache."""
    network = small_network(head=True, trunk="mlp", hidden=[16], dropout=0.2)
    settings = {"mixup_alpha": 0.4, "hard_negative_weight": 2.0, "contrastive_weight": 0.1}
    rows = blobs(129)
    result = train_embedder(
        network,
        TrainingRows(rows.x_num, rows.labels, second_x_num=rows.x_num + 0.1),
        blobs(40, 1, 1000),
        quick(ce_weight=0.5, **CACHED, **settings),
        seed=0,
        checkpoint=checkpoint,
        progress=progress,
    )
    return network, result


def stop(record):
    raise KeyboardInterrupt


def work(folder):
    """What each process does; `folder` takes what it ends with."""
    import warnings

    rank = int(os.environ["RANK"])
    warnings.simplefilter("ignore")
    mixed_run(Path(folder) / "run", stop)
    for name, (network, result) in {
        "table": table_run(),
        "corrected": corrected_run(),
        "mixed": mixed_run(),
        "resumed": mixed_run(Path(folder) / "run"),
    }.items():
        history = [[r["train_loss"], r["held_out_nll"], r["scale"]] for r in result.history]
        tensors = {"history": torch.tensor(history), **network.state_dict()}
        save_file(
            {key: tensor.clone() for key, tensor in tensors.items()},
            Path(folder) / f"{name}-{rank}.safetensors",
        )


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Weights and history of each run on each of two processes."""
    folder = tmp_path_factory.mktemp("processes")
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }
    code = f"from tests.training.test_processes import work; work({str(folder)!r})"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        for child in children:
            _, errors = child.communicate(timeout=120)
            assert child.returncode == 0, errors
    finally:
        for child in children:
            child.kill()
    return {
        (name, rank): load_file(folder / f"{name}-{rank}.safetensors")
        for name in ("table", "corrected", "mixed", "resumed")
        for rank in (0, 1)
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["table", "corrected", "mixed"])
def test_processes_end_with_the_same_weights_and_history(ended, name):
    one, other = ended[name, 0], ended[name, 1]
    assert one.keys() == other.keys()
    for key in one:
        assert torch.equal(one[key], other[key]), key


@pytest.mark.slow
@pytest.mark.parametrize(("name", "run"), [("table", table_run), ("corrected", corrected_run)])
def test_result_is_that_of_one_process(ended, name, run):
    network, result = run()
    for key, tensor in network.state_dict().items():
        torch.testing.assert_close(ended[name, 0][key], tensor, atol=1e-4, rtol=1e-3)
    losses = torch.tensor([record["train_loss"] for record in result.history])
    torch.testing.assert_close(ended[name, 0]["history"][:, 0], losses, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_processes_learn(ended):
    losses = ended["mixed", 0]["history"][:, 0]
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_processes_resume_to_an_unbroken_result_bit_for_bit(ended):
    for rank in (0, 1):
        for key, tensor in ended["mixed", 0].items():
            assert torch.equal(ended["resumed", rank][key], tensor), key


def test_batches_too_small_to_share_are_named():
    with pytest.raises(ValueError, match="Batches of 6 rows cannot be shared by 4 processes"):
        check_shares(12, 8, 4)
    check_shares(12, 8, 3)
    check_shares(12, 2, 1)


def test_one_process_shares_nothing(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join_processes(torch.device("cpu")) == (Processes(), torch.device("cpu"))
    rows = torch.rand(3, 2)
    assert Processes().gather(rows)[0] is rows
