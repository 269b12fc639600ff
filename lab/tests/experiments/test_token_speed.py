"""The benchmark of token layers: which of its two scripts a command line means."""

import pytest


@pytest.mark.parametrize("words", [["--device", "cuda"], ["--device", "cpu"], ["--device=cpu"]])
def test_a_device_asks_for_the_script_for_devices_which_takes_it(load_benchmark, words):
    benchmark = load_benchmark("token_speed")
    assert benchmark.names_device(words)
    assert benchmark.token_speed_cuda.parsed(words).device == words[-1].removeprefix("--device=")


@pytest.mark.parametrize("words", [[], ["--layers", "KNNAttention"], ["--out", "cuda"]])
def test_without_a_device_it_is_the_one_for_the_cpu(load_benchmark, words):
    assert not load_benchmark("token_speed").names_device(words)
