"""FLOPs of a forward pass are counted as arithmetic says."""

import pytest
import torch
from nearwise_lab.nn import FLOP_FORMULAS, count_flops
from nearwise_lab.nn.convnn import ConvNNAttention
from nearwise_lab.nn.dense import MultiHeadAttention
from nearwise_lab.nn.vit import VisionTransformer
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from lab.tests.nn.tokens.cases import CASES as OWN
from nearwise.functional import attention_implementation
from nearwise.nn import KNNAttention
from tests.nn.tokens.cases import CASES, DIM, HEADS, N_TOKENS, tokens

N, D, K = N_TOKENS, DIM, 5
PROJECTIONS = 2 * N * D * 4 * D


class Operators(TorchDispatchMode):
    """Notes every operator that runs."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.add(func.overloadpacket)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("case", [*CASES, *OWN], ids=str)
@pytest.mark.parametrize("training", [False, True])
def test_every_product_of_a_layer_has_a_formula(case, training):
    with Operators() as operators, torch.no_grad(), attention_implementation("cpu"):
        case.make().train(training)(tokens(1))
    multiplying = ("mm", "mv", "dot", "conv", "attention", "dist", "nearwise::")
    products = {
        operator for operator in operators.seen if any(x in str(operator) for x in multiplying)
    }
    assert products <= set(flop_registry) | set(FLOP_FORMULAS)
    assert count_flops(case.make(), tokens(1), training=training).total > 0


@pytest.mark.parametrize("case", [*CASES, *OWN], ids=str)
def test_counts_grow_with_the_batch(case):
    layer = case.make()
    one, three = (count_flops(layer, tokens(n)).of() for n in (1, 3))
    assert three == {kind: 3 * n for kind, n in one.items()}


def test_dense_attention_by_hand():
    own = count_flops(MultiHeadAttention(D, HEADS, proj_bias=False), tokens(1)).of()
    assert own == {"linear": PROJECTIONS, "attention": 4 * N * N * D, "convolution": 0}


def test_nearest_tokens_by_hand():
    own = count_flops(KNNAttention(D, HEADS, n_neighbors=K, proj_bias=False), tokens(1)).of()
    attention = 2 * N * N * D + 2 * N * K * D
    assert own == {"linear": PROJECTIONS, "attention": attention, "convolution": 0}


def test_the_backward_pass_of_nearest_tokens_by_hand():
    layer = KNNAttention(D, HEADS, n_neighbors=K, proj_bias=False)
    x = tokens(1).requires_grad_()
    with attention_implementation("cpu"):
        output = layer(x)
        with FlopCounterMode(display=False, custom_mapping=FLOP_FORMULAS) as counter:
            output.sum().backward()
    # Of each of N K pairs: the gradients of weight and value, of query and key.
    assert counter.get_total_flops() == 2 * PROJECTIONS + 8 * N * K * D


@pytest.mark.parametrize(
    ("convolution", "attention", "linear"),
    [
        ("standard", 0, 2 * N * K * D * D // HEADS),
        ("depthwise", 2 * N * K * D, 0),
        ("depthwise-separable", 2 * N * K * D, 2 * N * D * D // HEADS),
    ],
)
def test_convolutions_over_neighbors_by_hand(convolution, attention, linear):
    layer = ConvNNAttention(D, HEADS, n_neighbors=K, convolution=convolution)
    own = count_flops(layer, tokens(1)).of()
    ranking = 2 * N * N * D + 2 * N * K * HEADS  # the search, and sums of one number per head
    assert own == {
        "linear": PROJECTIONS + linear,
        "attention": ranking + attention,
        "convolution": 0,
    }


def test_a_convolution_that_published_counts_leave_out():
    layer = ConvNNAttention(192, 1, n_neighbors=9, convolution="standard")
    linear = count_flops(layer, torch.randn(1, 197, 192)).of()["linear"]
    assert linear - 2 * 197 * 4 * 192**2 == pytest.approx(0.131e9, rel=0.01)


def test_an_encoder_layer_of_torch_is_counted_without_its_fused_path():
    layer = nn.TransformerEncoderLayer(D, HEADS, 2 * D, batch_first=True).eval()
    own = count_flops(layer, tokens(1)).of()
    assert own["linear"] == PROJECTIONS + 2 * 2 * N * D * 2 * D
    assert own["attention"] == 4 * N * N * D
    assert torch.backends.mha.get_fastpath_enabled()


def test_parts_add_up_to_the_whole():
    model = VisionTransformer(image_size=32, patch_size=8, n_classes=10, dim=D, depth=2)
    count = count_flops(model, torch.randn(1, 3, 32, 32))
    parts = [name for name, _ in model.named_children()]
    assert sum(sum(count.of(name).values()) for name in parts) == count.total
    assert count.of("blocks.0") == count.of("blocks.1")
    assert count.of("blocks.0")["attention"] == count.of("blocks.0.attn")["attention"]


def test_training_draws_candidates_and_costs_less():
    layer = ConvNNAttention(D, HEADS, n_neighbors=3, sampling="random", num_samples=6)
    evaluated, trained = (count_flops(layer, tokens(1), training=t) for t in (False, True))
    assert trained.of()["attention"] < evaluated.of()["attention"]


def test_counting_leaves_no_trace():
    layer = nn.Sequential(nn.Dropout(0.5), nn.Linear(D, D))
    layer[0].eval()
    before, weight = torch.get_rng_state(), layer[1].weight.clone()
    with attention_implementation("plain"):
        first = count_flops(layer, tokens(1), training=True)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(weight, layer[1].weight)
    assert layer.training
    assert not layer[0].training
    assert not layer[1]._forward_hooks
    assert first == count_flops(layer, tokens(1), training=True)


def test_models_on_other_devices_are_refused():
    with pytest.raises(ValueError, match="the model or its input lies on meta"):
        count_flops(nn.Linear(3, 3, device="meta"), torch.randn(1, 3))
