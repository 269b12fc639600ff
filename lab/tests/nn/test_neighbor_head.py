"""Neighbor attention with a null neighbor, against loops, and what its weights promise."""

import math

import pytest
import torch
from nearwise_lab.nn.neighbor_head import NeighborHead, describe_neighborhood

from tests.reference.neighbor_head import slow_describe, slow_head

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
POOLINGS = ["log-linear", "mixture"]
NULLS = ["auto", "prior", "parametric", None]


def neighborhood(kind="random", n=5, k=6, n_classes=3, seed=0):
    """Parts of a neighborhood; "lattice" has ties, exact zeros, duplicates and no class 2."""
    g = torch.Generator().manual_seed(seed)
    distances = torch.rand(n, k, generator=g).mul(3).sort(dim=1).values
    labels = torch.randint(0, n_classes, (n, k), generator=g)
    reliability = torch.rand(n, k, generator=g)
    log_weight = torch.rand(n, k, generator=g).add(0.1).log()
    base = torch.log_softmax(torch.randn(n, n_classes, generator=g), dim=1)
    own = -torch.rand(n, k, generator=g).mul(9)
    if kind == "lattice":
        distances = distances.round()
        distances[:2] = 0.0
        labels = labels.clamp_max(1)
        reliability, log_weight = reliability.round(), torch.zeros(n, k)
        log_weight[0, : k // 2] = -math.inf
    return distances, labels, reliability, base, own, log_weight


def spaces_and_base(kind="random", n_spaces=2, n=5, k=6, n_classes=3):
    parts = [neighborhood(kind, n, k, n_classes, seed=s) for s in range(n_spaces)]
    base = parts[0][3]
    return [describe_neighborhood(d, y, r, base, own, w) for d, y, r, _, own, w in parts], base


def trained_looking(head):
    """Give every parameter a value, as training would."""
    g = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=g) * 0.3)
    return head.eval()


def make_head(n_spaces=2, n_classes=3, **settings):
    prior = torch.arange(1, n_classes + 1).float()
    settings = {"has_base": True} | settings
    return NeighborHead(n_spaces, prior / prior.sum(), **settings)


@pytest.mark.parametrize("kind", ["random", "lattice"])
@pytest.mark.parametrize("k", [1, 6])
def test_description_equals_loops(kind, k):
    d, y, r, base, own, w = neighborhood(kind, k=k)
    seen = describe_neighborhood(d, y, r, base, own, w)
    features, summary = slow_describe(d, y, r, base, own, w)
    torch.testing.assert_close(seen.features, features, **CLOSE)
    torch.testing.assert_close(seen.summary, summary, **CLOSE)


def test_description_of_a_class_that_the_base_does_not_know():
    d, y, r, base, _, _ = neighborhood()
    y[:, 0] = 4
    seen = describe_neighborhood(d, y, r, base)
    features, summary = slow_describe(d, y, r, base)
    torch.testing.assert_close(seen.features, features, **CLOSE)
    torch.testing.assert_close(seen.summary, summary, **CLOSE)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("kind", ["random", "lattice"])
@pytest.mark.parametrize("null", NULLS)
@pytest.mark.parametrize("has_base", [True, False])
def test_head_equals_loops(pooling, kind, null, has_base):
    spaces, base = spaces_and_base(kind, n=3, k=4)
    if null == "parametric" and not has_base:
        with pytest.raises(ValueError, match="there is none"):
            make_head(pooling=pooling, null=null, has_base=has_base)
        return
    settings = {"null": null, "has_base": has_base, "num_heads": 2}
    head = trained_looking(make_head(pooling=pooling, **settings))
    with torch.no_grad():
        output = head(spaces, base)
        pooled, alone, weights, null_mass = slow_head(head, spaces, base)
    torch.testing.assert_close(output.log_proba.exp(), pooled, **CLOSE)
    torch.testing.assert_close(output.neighbor_log_proba.exp(), alone, **CLOSE)
    torch.testing.assert_close(torch.cat(output.weights, dim=1), weights, **CLOSE)
    torch.testing.assert_close(output.null_mass, null_mass, **CLOSE)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("null", NULLS)
@pytest.mark.parametrize("kind", ["random", "lattice"])
@pytest.mark.parametrize("certain", [True, False])
def test_gradients_are_those_of_finite_differences(pooling, null, kind, certain):
    spaces, base = spaces_and_base(kind, n=6)
    if not certain:
        sure = torch.rand(6, 6, generator=torch.Generator().manual_seed(3))
        spaces = [space._replace(certainty=sure) for space in spaces]
    spaces[0].log_weight[2] = -math.inf  # nobody can be asked in one space, in both, one can
    for space in spaces:
        space.log_weight[3] = -math.inf
        space.log_weight[4, 1:] = -math.inf
    spaces = [
        type(space)(*(x.double() if x.is_floating_point() else x for x in space))
        for space in spaces
    ]
    head = trained_looking(make_head(pooling=pooling, null=null)).double()
    names = [name for name, _ in head.named_parameters()]

    def outputs(*parameters):
        values = dict(zip(names, parameters, strict=True))
        output = torch.func.functional_call(head, values, (spaces, base.double()))
        return output.log_proba, output.neighbor_log_proba, output.null_mass

    close = {"eps": 1e-6, "atol": 1e-6, "rtol": 1e-4}
    # the hardest case entry by entry, the others along a random direction of the parameters
    along = certain or kind != "lattice"
    parameters = tuple(head.parameters())
    assert torch.autograd.gradcheck(outputs, parameters, **close, fast_mode=along)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("null", ["auto", None])
@pytest.mark.parametrize("num_heads", [1, 4])
@pytest.mark.parametrize("k", [1, 12])
def test_weights_and_null_mass_sum_to_one(pooling, null, num_heads, k):
    spaces, base = spaces_and_base("lattice", k=k)
    head = trained_looking(make_head(pooling=pooling, null=null, num_heads=num_heads))
    output = head(spaces, base)
    total = torch.cat(output.weights, dim=1).sum(1) + output.null_mass
    torch.testing.assert_close(total, torch.ones(len(base)))
    assert (torch.cat(output.weights, dim=1) >= 0).all()
    for log_proba in (output.log_proba, output.neighbor_log_proba):
        torch.testing.assert_close(log_proba.exp().sum(1), torch.ones(len(base)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_untrained_head_without_null_is_distance_weighting(dtype):
    d, y, r, base, _, w = neighborhood()
    head = make_head(1, null=None, num_heads=1, has_base=False).to(dtype)
    seen = describe_neighborhood(*(x.to(dtype) for x in (d,)), y, r, base, None, w)
    output = head([seen], base)
    expected = torch.softmax(-d + w, dim=1)
    torch.testing.assert_close(output.weights[0].float(), expected)
    assert (output.null_mass == 0).all()


def test_untrained_heads_differ_in_scale_and_average():
    d, y, r, base, _, _ = neighborhood()
    head = make_head(1, null=None, num_heads=3, has_base=False)
    seen = describe_neighborhood(d, y, r, base)
    expected = torch.stack([torch.softmax(-d * math.exp(s), 1) for s in (-0.7, 0.0, 0.7)]).mean(0)
    torch.testing.assert_close(head([seen], base).weights[0], expected)


def test_untrained_null_takes_the_same_small_share_everywhere():
    spaces, base = spaces_and_base()
    mass = make_head()(spaces, base).null_mass
    torch.testing.assert_close(mass, torch.full_like(mass, 1 / (1 + math.exp(2))))


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("null", ["auto", None])
def test_with_every_neighbor_left_out_the_prior_answers_and_gradients_stay_finite(pooling, null):
    d, y, r, base, _, w = neighborhood()
    seen = describe_neighborhood(d, y, r, base, None, torch.full_like(w, -math.inf))
    head = trained_looking(make_head(1, pooling=pooling, null=null, has_base=False))
    output = head([seen], base)
    torch.testing.assert_close(output.null_mass, torch.ones(len(d)))
    for answer in output.neighbor_log_proba.exp():
        torch.testing.assert_close(answer, head.prior)
    (output.log_proba.sum() + output.neighbor_log_proba.sum()).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in head.parameters())


def test_neighbor_with_weight_zero_gets_none():
    d, y, r, base, _, w = neighborhood()
    w[:, 1] = -math.inf
    head = trained_looking(make_head(1))
    output = head([describe_neighborhood(d, y, r, base, None, w)], base)
    assert (output.weights[0][:, 1] == 0).all()


@pytest.mark.parametrize("pooling", POOLINGS)
def test_new_classes_take_the_mass_of_the_neighbors_that_carry_them(pooling):
    d, y, r, base, _, _ = neighborhood()
    y[:] = 0
    y[0, :2] = 4
    seen = describe_neighborhood(d, y, r, base)
    head = trained_looking(make_head(1, pooling=pooling))
    output = head([seen], base)
    assert output.log_proba.shape == (5, 5)
    torch.testing.assert_close(output.log_proba.exp().sum(1), torch.ones(5))
    mass = output.weights[0][0, :2].sum()
    torch.testing.assert_close(output.log_proba[0, 4].exp(), mass, rtol=1e-3, atol=1e-5)
    assert (output.log_proba[1:, 3:].exp() < 1e-6).all()


def test_each_query_is_answered_alone():
    spaces, base = spaces_and_base()
    head = trained_looking(make_head())
    one = torch.tensor([2])
    together, alone = head(spaces, base), head([s.take(one) for s in spaces], base[one])
    torch.testing.assert_close(together.log_proba[2:3], alone.log_proba)


def test_config_rebuilds_the_head():
    head = make_head(3, pooling="mixture", null=None, num_heads=2)
    twin = NeighborHead(prior=head.prior, **head.config)
    twin.load_state_dict(head.state_dict())
    spaces, base = spaces_and_base(n_spaces=3)
    assert torch.equal(head(spaces, base).log_proba, twin(spaces, base).log_proba)


def test_gates_are_positive_and_name_base_and_spaces():
    base, spaces = make_head(2).gates
    assert base == pytest.approx(1.0) and spaces == pytest.approx([0.1, 0.1])
    assert make_head(2, has_base=False).gates[0] == 0.0


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("null", ["prior", "parametric"])
def test_where_no_neighbor_is_asked_the_null_gives_what_it_carries(pooling, null):
    d, y, r, base, _, w = neighborhood()
    nobody = describe_neighborhood(d, y, r, base, None, torch.full_like(w, -math.inf))
    head = make_head(1, pooling=pooling, null=null)
    with torch.no_grad():
        head.base_gate.fill_(-50.0)  # the base speaks through the null alone
        head.space_gate.fill_(math.log(math.expm1(1.0)))
    carried = head.prior.expand(len(base), -1) if null == "prior" else base.exp()
    torch.testing.assert_close(head([nobody], base).log_proba.exp(), carried, **CLOSE)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("null", NULLS)
@pytest.mark.parametrize("kind", ["random", "lattice"])
@pytest.mark.parametrize("k", [1, 6])
def test_prediction_without_a_neighbor_equals_one_that_never_had_it(pooling, null, kind, k):
    spaces, base = spaces_and_base(kind, k=k)
    log_weight = spaces[0].log_weight.clone()
    log_weight[3, 1:] = -math.inf  # the only neighbor there, and it goes
    log_weight[1, 0] = 70.0  # beside it, float32 tells nothing of the others
    spaces = [spaces[0]._replace(log_weight=log_weight), *spaces[1:]]
    head = trained_looking(make_head(pooling=pooling, null=null))
    rows = torch.tensor([0, 3, 3, 1, 1, 2])
    # Rows 0 to k - 1 are in both spaces, at different ranks; row k is in the second alone.
    found = [torch.arange(k).expand(len(base), k), torch.arange(k, 0, -1).expand(len(base), k)]
    gone = torch.tensor([0, 0, k // 2, 0, k, 99])
    never = [
        space.take(rows)._replace(
            log_weight=space.log_weight[rows].masked_fill(numbers[rows] == gone[:, None], -math.inf)
        )
        for space, numbers in zip(spaces, found, strict=True)
    ]
    expected = head.predict(never, base[rows])
    with torch.no_grad():
        logits = head.attend(spaces)
    both = head.predict_without(logits, spaces, base, rows, gone, found)
    torch.testing.assert_close(both.exp(), expected.log_proba.exp(), **CLOSE)
