"""Operations of a forward pass are counted as arithmetic says."""

import math

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from nearwise.functional import attention_implementation
from nearwise.lab.nn import count_operations
from nearwise.lab.nn.operation_rules import selection_operations
from nearwise.nn import ConvNNAttention, KNNAttention, MultiHeadAttention, VisionTransformer
from tests.nn.tokens.cases import CASES, DIM, HEADS, N_TOKENS, tokens

N, D, K = N_TOKENS, DIM, 5
PROJECTIONS = 2 * N * D * 4 * D


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("training", [False, True])
def test_no_operator_of_a_layer_is_left_uncounted(case, training):
    count = count_operations(case.make(), tokens(1), training=training)
    assert count.uncounted == ()
    assert count.products > 0


@pytest.mark.parametrize("case", CASES, ids=str)
def test_counts_grow_with_the_batch(case):
    layer = case.make()
    one, three = (count_operations(layer, tokens(n)).of() for n in (1, 3))
    for kind in ("linear", "attention", "convolution"):
        assert three[kind] == pytest.approx(3 * one[kind])


def test_dense_attention_by_hand():
    own = count_operations(MultiHeadAttention(D, HEADS, proj_bias=False), tokens(1)).of()
    assert own["linear"] == PROJECTIONS
    assert own["attention"] == 4 * N * N * D
    assert own["other"] == 5 * N * N * HEADS
    assert own["selection"] == own["gather"] == own["convolution"] == 0


def test_nearest_tokens_by_hand():
    own = count_operations(KNNAttention(D, HEADS, n_neighbors=K, proj_bias=False), tokens(1)).of()
    assert own["linear"] == PROJECTIONS
    assert own["attention"] == 2 * N * N * D + 2 * N * K * D
    assert own["gather"] == N * K * D
    assert own["selection"] == pytest.approx(N * HEADS * selection_operations(N, K))
    assert own["other"] == 5 * N * K * HEADS


@pytest.mark.parametrize(
    ("convolution", "flops"),
    [
        ("standard", 2 * N * K * D * D // HEADS + N * K * D),
        ("depthwise", 3 * N * K * D),
        ("depthwise-separable", 3 * N * K * D + 2 * N * D * D // HEADS),
    ],
)
def test_convolutions_over_neighbors_by_hand(convolution, flops):
    layer = ConvNNAttention(D, HEADS, n_neighbors=K, convolution=convolution)
    assert count_operations(layer, tokens(1)).of()["convolution"] == flops


def test_a_convolution_that_published_counts_leave_out():
    layer = ConvNNAttention(192, 1, n_neighbors=9, convolution="standard")
    convolution = count_operations(layer, torch.randn(1, 197, 192)).of()["convolution"]
    assert convolution == pytest.approx(0.131e9, rel=0.01)


def test_a_whole_model_agrees_with_torch_where_torch_counts():
    torch_counts = {"aten.mm", "aten.addmm", "aten.convolution", "aten.bmm"}
    model = VisionTransformer(
        image_size=32, patch_size=8, n_classes=10, dim=D, depth=2, layer="MultiHeadAttention"
    )
    image = torch.randn(1, 3, 32, 32)
    own = count_operations(model, image)
    with FlopCounterMode(display=False) as counter:
        model.eval()(image)
    theirs = counter.get_flop_counts()["Global"]
    expected = sum(n for op, n in theirs.items() if str(op) in torch_counts)
    assert own.of()["linear"] + own.of()["convolution"] == expected
    # It has no rule for the attention of CPUs: 4 N^2 D a layer.
    assert own.of()["attention"] == 2 * 4 * 17 * 17 * D


def test_selection_is_what_a_running_list_takes():
    generator = torch.Generator().manual_seed(0)
    n, k, runs = 400, 9, 300
    steps = 0.0
    for _ in range(runs):
        best: list[float] = []
        for score in torch.rand(n, generator=generator).tolist():
            if len(best) < k or score > best[0]:
                best = sorted([*best, score])[-k:]
                steps += k / 2
            steps += 1
    assert steps / runs == pytest.approx(selection_operations(n, k), rel=0.05)


def test_parts_add_up_to_the_whole():
    model = VisionTransformer(image_size=32, patch_size=8, n_classes=10, dim=D, depth=2)
    count = count_operations(model, torch.randn(1, 3, 32, 32))
    parts = [name for name, _ in model.named_children()]
    total = sum(sum(count.of(name).values()) for name in parts)
    own = sum(count.by_module.get("", {}).values())
    assert total + own == pytest.approx(count.total)
    assert count.of("blocks.0") == count.of("blocks.1")
    assert count.of("blocks.0")["attention"] == count.of("blocks.0.attn")["attention"]


def test_training_draws_candidates_and_costs_less():
    layer = ConvNNAttention(D, HEADS, n_neighbors=3, sampling="random", num_samples=6)
    evaluated, trained = (count_operations(layer, tokens(1), training=t) for t in (False, True))
    assert trained.of()["selection"] < evaluated.of()["selection"] / 2


def test_counting_leaves_no_trace():
    layer = nn.Sequential(nn.Dropout(0.5), nn.Linear(D, D))
    layer[0].eval()
    before, weight = torch.get_rng_state(), layer[1].weight.clone()
    with attention_implementation("plain"):
        first = count_operations(layer, tokens(1), training=True)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(weight, layer[1].weight)
    assert layer.training
    assert not layer[0].training
    assert not layer[1]._forward_hooks
    assert first == count_operations(layer, tokens(1), training=True)


def test_an_operator_without_a_rule_is_named_not_hidden():
    class Odd(nn.Module):
        def forward(self, x):
            return torch.linalg.inv(x)

    count = count_operations(Odd(), torch.eye(3))
    assert count.total == 0
    assert any("inv" in name for name in count.uncounted)


def test_models_on_other_devices_are_refused():
    with pytest.raises(ValueError, match="the model or its input lies on meta"):
        count_operations(nn.Linear(3, 3, device="meta"), torch.randn(1, 3))


def test_logarithm_of_the_rule_is_of_the_scores_a_slot():
    assert selection_operations(100, 100) == 100 + 100 * 50
    assert selection_operations(100, 1) == pytest.approx(100 + (1 + math.log(100)) / 2)
