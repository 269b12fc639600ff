"""What the bench of layers measures."""

import subprocess

import pytest
import torch
from nearwise_lab.experiments.token_layers import (
    BASELINE,
    LayerChoice,
    LayerShape,
    layer_choices,
    peak_memory,
    time_layers,
)
from nearwise_lab.nn.layers import TOKEN_LAYERS


@pytest.mark.parametrize("n_tokens", [16, 17, 19])
def test_every_layer_is_there_and_runs(n_tokens):
    choices = layer_choices(n_tokens, 5)
    shape = LayerShape(2, n_tokens, 24, 3)
    assert choices[0].name == BASELINE
    names = {choice.layer for choice in choices}
    on_grid = {"NeighborhoodAttention2D"} if n_tokens == 19 else set()
    assert names == set(TOKEN_LAYERS) - on_grid
    for choice in choices:
        with choice.running():
            assert choice.make(shape)(shape.draw()).shape == (2, n_tokens, 24)


def test_layers_are_picked_by_name_beside_the_baseline():
    def picked(*names):
        return [choice.name for choice in layer_choices(17, 5, names)]

    assert picked("knnattention") == [BASELINE, "KNNAttention"]
    assert picked("Attention", "BranchConv") == [BASELINE, "BranchingConv"]  # as in vit train
    with pytest.raises(ValueError, match="Did you mean 'KvtAttention'"):
        picked("KvtAtention")


def test_layers_take_turns_and_are_left_as_they_were():
    order = []

    class Watched(torch.nn.Linear):
        def forward(self, x):
            order.append((self.mark, torch.is_grad_enabled()))
            return super().forward(x)

    class Choice(LayerChoice):
        def make(self, shape, device="cpu"):
            layer = Watched(shape.dim, shape.dim)
            layer.mark = self.name
            return layer

    choices = [Choice(BASELINE, ""), Choice("other", "")]
    times = time_layers(choices, LayerShape(1, 4, 8, 1), repeats=8)
    assert [grad for _, grad in order] == [False, True] * 20
    assert [mark for mark, _ in order[::2]] == [mark for mark, _ in order[1::2]]
    rounds = [(order[i][0], order[i + 2][0]) for i in range(0, len(order), 4)]
    assert {frozenset(names) for names in rounds} == {frozenset((BASELINE, "other"))}
    assert len(set(rounds)) == 2  # now one first, now the other
    assert list(times) == [BASELINE, "other"]


@pytest.mark.slow
def test_peak_memory_of_a_tile_of_pairs_is_seen():
    shape = LayerShape(1, 1024, 24, 3)
    plain = next(c for c in layer_choices(1024, 9) if c.plain)
    peaks = peak_memory(plain, shape, ("forward",))
    # Scores of all pairs, in one tile, with numbers that order them: 3 * 1024^2 of 12 to 40 bytes.
    assert 36 <= peaks["forward"] <= 200


def test_the_memory_of_a_layer_that_fails_is_an_error(monkeypatch):
    def run(command, **options):
        assert options["env"]["OMP_NUM_THREADS"] == "1"
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nValueError: too many\n")

    monkeypatch.setattr(subprocess, "run", run)
    choice, shape = LayerChoice("wrong", "KNNAttention"), LayerShape(1, 30, 24, 3)
    with pytest.raises(RuntimeError, match="The memory of wrong was not measured: ValueError: too"):
        peak_memory(choice, shape)


def test_the_curve_of_the_benchmark_notes_failures_and_ends_in_its_power(
    load_benchmark, monkeypatch
):
    benchmark = load_benchmark("layer_memory")

    def peak(choice, shape, passes, device):
        if shape.tokens == 64:
            raise RuntimeError("no memory")
        return {"forward_backward": shape.tokens**2 / 16}

    monkeypatch.setattr(benchmark, "peak_memory", peak)
    choice = LayerChoice("a", "KNNAttention")
    curve = [benchmark.measure_point(choice, LayerShape(1, n), "cpu") for n in (16, 64, 8, 4)]
    assert curve[1] == {"layer": "a", "tokens": 64, "mib": None, "note": "no memory"}
    assert benchmark.growth(curve, "a") == pytest.approx(2)
    assert benchmark.growth(curve[:2], "a") is None


def test_bad_shapes_are_refused():
    with pytest.raises(ValueError, match="tokens=0 must be at least 1"):
        LayerShape(1, 0)
    with pytest.raises(ValueError, match="dtype='int8' is not one of"):
        LayerShape(1, 4, dtype="int8")
    with pytest.raises(ValueError, match="n_neighbors=0 must lie between 1 and the 4"):
        layer_choices(4, 0)
