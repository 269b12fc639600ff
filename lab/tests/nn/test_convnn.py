"""ConvNN: against loops, its candidates, and what it has in common with other layers."""

import math

import pytest
import torch
import torch.nn.functional as F
from nearwise_lab.nn.convnn import ConvNNAttention, SlotConvolution
from nearwise_lab.nn.dense import KvtAttention, MultiHeadAttention

from lab.tests.reference.token_layers import convnn as slow
from nearwise.nn import KNNAttention, Sampling
from tests.nn.tokens.cases import tokens

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
METRICS = ("matmul", "cosine", "euclidean")
CONVOLUTIONS = ("standard", "depthwise", "depthwise-separable")


def make(heads=3, **options):
    torch.manual_seed(1)
    layer = ConvNNAttention(24, heads, **{"n_neighbors": 4, **options})
    torch.nn.init.normal_(layer.conv.weight)
    return layer.double()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("convolution", CONVOLUTIONS)
@pytest.mark.parametrize("weighting", ["softmax", "raw"])
@pytest.mark.parametrize("candidates", [None, [1, 4, 5, 8, 10]], ids=["all", "some"])
def test_it_equals_the_loops(metric, convolution, weighting, candidates):
    layer = make(metric=metric, convolution=convolution, weighting=weighting)
    x = tokens(n_tokens=11, dtype=torch.float64)
    expected = slow(layer, x, candidates)
    given = None if candidates is None else torch.tensor(candidates)
    torch.testing.assert_close(layer(x, candidates=given), expected, **CLOSE)


@pytest.mark.parametrize("metric", METRICS)
def test_one_slot_is_the_token_itself_where_candidates_are_sampled(metric):
    x = tokens(dtype=torch.float64)
    layer = make(n_neighbors=1, metric=metric, sampling="line", num_samples=5)
    torch.testing.assert_close(layer(x), slow(layer, x, [0, 4]), **CLOSE)
    raw = make(n_neighbors=1, metric=metric, weighting="raw")
    candidates = torch.arange(5)
    torch.testing.assert_close(raw(x, candidates=candidates), slow(raw, x, range(5)), **CLOSE)


def test_all_neighbors_and_a_convolution_of_ones_are_full_attention():
    layer = ConvNNAttention(24, 3, n_neighbors=17)
    full = MultiHeadAttention(24, 3)
    full.load_state_dict({k: v for k, v in layer.state_dict().items() if k != "conv.weight"})
    torch.testing.assert_close(layer(tokens()), full(tokens()), **CLOSE)


@pytest.mark.parametrize("n_neighbors", [1, 5, 16])
def test_a_convolution_of_ones_is_kvt(n_neighbors):
    layer = ConvNNAttention(24, 3, n_neighbors=n_neighbors)
    kvt = KvtAttention(24, 3, n_neighbors=n_neighbors)
    kvt.load_state_dict({k: v for k, v in layer.state_dict().items() if k != "conv.weight"})
    torch.testing.assert_close(layer(tokens()), kvt(tokens()), **CLOSE)


def test_neighbors_by_position_on_a_line_are_a_convolution():
    n_tokens, dim = 17, 6  # steps of 1/8: distances tie exactly
    layer = ConvNNAttention(
        dim, 1, n_neighbors=3, metric="euclidean", convolution="standard", coordinates=True,
        proj_bias=False,
    ).double()  # fmt: skip
    with torch.no_grad():  # similarity sees the coordinates alone, and values have none
        layer.qkv.weight[: 2 * dim] = 0
        layer.qkv.weight[2 * dim :] = torch.eye(dim)
        layer.proj.weight.copy_(torch.eye(dim))
        layer.conv.weight[:, dim:] = 0
    x = tokens(n_tokens=n_tokens, dim=dim, dtype=torch.float64)
    # Itself first, then the two beside it: the lower index before the higher.
    shares = torch.softmax(-torch.tensor([0.0, 1, 1]).double() * 2 / (n_tokens - 1), dim=0)
    weight = layer.conv.weight[:, :dim] * shares
    convolved = F.conv1d(x.transpose(1, 2), weight[..., [1, 0, 2]]).transpose(1, 2)
    inner = slice(1, -1)  # at the ends the nearest three are others
    torch.testing.assert_close(layer(x)[:, inner], convolved, **CLOSE)


def test_spatial_candidates_spread_evenly():
    place = torch.device("cpu")
    assert Sampling("all", 4).draw(17, place, True) is None
    assert Sampling("line", 5).draw(17, place, False).tolist() == [0, 4, 8, 12, 16]
    assert Sampling("line", 3, padding=2).draw(17, place, False).tolist() == [2, 8, 14]
    assert Sampling("line", 1).draw(17, place, False).tolist() == [0]
    beside = Sampling("line", 4, num_prefix_tokens=1).draw(17, place, False)
    assert beside.tolist() == [0, 1, 6, 11, 16]
    drawn = Sampling("grid", 2, num_prefix_tokens=1).draw(17, place, False)
    assert drawn.tolist() == [0, 1, 4, 13, 16]  # the class token and the corners
    inner = Sampling("grid", 2, padding=1, grid_size=(4, 4)).draw(16, place, False)
    assert inner.tolist() == [5, 6, 9, 10]


def test_random_candidates_follow_their_generator_and_rest_in_evaluation():
    place = torch.device("cpu")
    drawn = [
        Sampling("random", 6, generator=torch.Generator().manual_seed(s)).draw(17, place, True)
        for s in (4, 4, 5)
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    beside = Sampling("random", 16, num_prefix_tokens=1).draw(17, place, True)
    assert beside[0] == 0 and set(beside.tolist()) == set(range(17))  # the class token first
    before = torch.get_rng_state()
    Sampling("random", 6, generator=torch.Generator()).draw(17, place, True)
    assert torch.equal(before, torch.get_rng_state())
    assert Sampling("random", 6).draw(17, place, training=False) is None
    assert len(Sampling("random", 6, sample_in_eval=True).draw(17, place, training=False)) == 6


def test_a_layer_that_samples_trains_on_its_candidates_alone():
    generator = torch.Generator().manual_seed(0)
    layer = KNNAttention(24, 3, n_neighbors=3, sampling=Sampling("random", 5, generator=generator))
    drawn = Sampling("random", 5, generator=torch.Generator().manual_seed(0)).draw(
        17, torch.device("cpu"), True
    )
    torch.testing.assert_close(layer(tokens()), layer.eval()(tokens(), candidates=drawn))


def test_random_sampling_compiles_into_one_graph():
    torch.compiler.reset()
    layer = ConvNNAttention(24, 3, n_neighbors=3, sampling="random", num_samples=6)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.manual_seed(7)
    output = compiled(tokens())
    torch.manual_seed(7)
    torch.testing.assert_close(output, layer(tokens()), **CLOSE)


def test_the_null_neighbor_takes_weight_where_it_scores_high():
    layer = KNNAttention(24, 3, n_neighbors=4, null_neighbor=True).eval()
    plain = KNNAttention(24, 3, n_neighbors=4).eval()
    plain.load_state_dict(layer.state_dict(), strict=False)
    x = tokens()
    with torch.no_grad():
        layer.null_score.fill_(-50.0)
        torch.testing.assert_close(layer(x), plain(x), **CLOSE)
        layer.null_score.fill_(50.0)
        layer.null_value.fill_(2.0)
        expected = layer.proj(torch.full((2, 17, 24), 2.0))
        torch.testing.assert_close(layer(x), expected, **CLOSE)
        layer.null_score.fill_(0.0)
        layer.null_key.normal_()
        query, key, value = layer._split(layer.qkv(x))
        bias = torch.randn(2, 3, 17, 17)
        scores = query @ key.mT * layer.scale + bias
        best = scores.topk(4, dim=-1)
        null = (query @ layer.null_key[..., None])[..., 0] * layer.scale
        weights = torch.softmax(torch.cat([best.values, null[..., None]], dim=-1), dim=-1)
        rows = torch.zeros_like(scores).scatter(-1, best.indices, weights[..., :4])
        heads = rows @ value + weights[..., 4:] * layer.null_value[:, None]
        expected = layer.proj(heads.transpose(1, 2).flatten(2))
        torch.testing.assert_close(layer(x, bias), expected, **CLOSE)


@pytest.mark.parametrize("metric", ["matmul", "cosine", "euclidean"])
def test_a_temperature_changes_weights_and_not_neighbors(metric):
    layer = KNNAttention(24, 3, n_neighbors=4, metric=metric, learned_temperature=True)
    first = layer.neighbors(tokens())
    with torch.no_grad():
        layer.log_scale.copy_(torch.tensor([0.0, 1.0, 5.0]))
    then = layer.neighbors(tokens())
    assert torch.equal(first.indices, then.indices)
    torch.testing.assert_close(first.weights[:, 0], then.weights[:, 0])
    assert (then.weights[:, 1:, :, 0] > first.weights[:, 1:, :, 0]).all()


@pytest.mark.parametrize("metric", METRICS)
def test_what_a_mask_adds_counts_in_raw_factors_too(metric):
    layer = make(n_neighbors=17, metric=metric, weighting="raw")
    torch.nn.init.ones_(layer.conv.weight)
    x, added = tokens(dtype=torch.float64), torch.zeros(17, 17, dtype=torch.float64)
    added[:, 3] = -0.5
    difference = layer(x, added) - layer(x)
    if metric == "euclidean":  # a factor is one over the distance, which grows
        assert (difference.abs().amax((0, 2)) > 1e-3).all()
        return
    value = layer.qkv(x).chunk(3, dim=-1)[2]
    expected = F.linear(-0.5 * value[:, 3:4], layer.proj.weight).expand_as(difference)
    torch.testing.assert_close(difference, expected, **CLOSE)


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_empty_slots_read_no_value(kind):
    torch.manual_seed(0)
    combine = SlotConvolution(kind, 3, 3, n_slots=4)
    value = torch.randn(1, 2, 6, 3)
    indices = torch.tensor([[3, 1, -1, -1], [-1, -1, -1, -1], [5, 2, 4, 1]]).expand(1, 2, -1, -1)
    weights = torch.rand(indices.shape).masked_fill(indices < 0, 0.0)
    spoilt = value.clone()
    spoilt[:, :, 0] = math.inf
    results = []
    for given in (value, spoilt):
        leaves = [x.clone().requires_grad_() for x in (given, weights)]
        output = combine(leaves[0], indices, leaves[1])
        grads = torch.autograd.grad(output.square().sum(), [*leaves, *combine.parameters()])
        results.append([output, *grads])
    for wanted, got in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)


def test_mistakes_are_named():
    far = torch.device("cpu")
    wrong = [
        (lambda: ConvNNAttention(24, 3, metric="l3"), "metric='l3' is not one of"),
        (lambda: ConvNNAttention(24, 3, weighting="mean"), "weighting='mean' is not one of"),
        (lambda: ConvNNAttention(24, 3, convolution="wide"), "convolution='wide' is not one of"),
        (lambda: ConvNNAttention(24, 3, n_neighbors=0), "n_neighbors=0 must be an integer"),
        (lambda: KNNAttention(24, 3, n_neighbors=0), "n_neighbors=0 must be an integer"),
        (lambda: Sampling("sometimes"), "'sometimes' is not known. Use one of"),
        (lambda: Sampling("spatial"), "'spatial' is not known.*a grid in the ConvNN paper"),
        (lambda: Sampling("random", 0), "num_samples=0 must be positive"),
        (lambda: Sampling("random", 18).draw(17, far, True), "exceeds the 17 tokens"),
        (lambda: Sampling("line", 18).draw(17, far, True), "18 samples do not fit the 17"),
        (lambda: Sampling("line", 3, padding=9).draw(17, far, True), "do not fit the 0 of 17"),
        (lambda: Sampling("grid", 2).draw(17, far, True), "do not fill a square grid"),
    ]
    for call, message in wrong:
        with pytest.raises(ValueError, match=message):
            call()
