"""Devices by name, and what is not there."""

import pytest
import torch

from nearwise.functional.devices import choose_device


@pytest.fixture
def gpus(monkeypatch):
    """Give a function that pretends that so many GPUs are there."""

    def pretend(n: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: n > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: n)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)

    return pretend


@pytest.mark.parametrize(("n", "kind"), [(0, "cpu"), (2, "cuda")])
def test_auto_is_a_gpu_where_there_is_one(gpus, n, kind):
    gpus(n)
    assert choose_device("auto") == torch.device(kind)


def test_a_device_that_is_there_is_taken_as_it_is_named(gpus):
    gpus(2)
    for name in ("cpu", "cuda", "cuda:1", torch.device("cuda:0"), torch.device("cpu")):
        assert choose_device(name) == torch.device(name)


@pytest.mark.parametrize(
    ("n", "name", "message"),
    [
        (0, "gpu", 'device=\'gpu\' is not known. Use "auto", "cpu"'),
        (0, None, "device=None is not known"),
        (0, "cuda", 'device=\'cuda\' is not available. Use "auto" or "cpu"'),
        (0, torch.device("mps"), "device='mps' is not available"),
        (2, "cuda:2", "device='cuda:2' is not available: the last GPU is cuda:1"),
    ],
)
def test_what_is_not_there_is_refused(gpus, n, name, message):
    gpus(n)
    with pytest.raises(ValueError, match=message):
        choose_device(name)
