"""What holds for every token layer."""

import copy

import pytest
import torch

from nearwise.functional import attention_implementation
from tests.nn.tokens.cases import DIM, HEADS, N_TOKENS, TORCHS, tokens

CLOSE = {"atol": 2e-5, "rtol": 2e-5}


@pytest.mark.parametrize("batch", [1, 3])
def test_the_shape_stays(case, batch):
    x = tokens(batch)
    output = case.make()(x)
    assert output.shape == x.shape
    assert output.isfinite().all()


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_nan_in_a_token_is_not_lost(case, mode):
    layer = getattr(case.make(), mode)()
    x = tokens(2)
    x[0, 7] = torch.nan
    output = layer(x)
    assert output[0, 7].isnan().all()
    assert output[1].isfinite().all()


def test_each_example_stands_alone(case):
    layer = case.make().eval()
    x = tokens(3)
    torch.testing.assert_close(layer(x)[1:2], layer(x[1:2]), **CLOSE)


def test_permuted_tokens_give_permuted_outputs(case):
    layer = case.make().eval()
    x, order = tokens(), torch.randperm(N_TOKENS)
    difference = (layer(x[:, order]) - layer(x)[:, order]).abs().max()
    # Where positions count, the check would see it.
    assert (difference < 2e-5) == case.equivariant


def test_padding_changes_nothing_for_the_others(case):
    layer = case.make().eval()
    padding = torch.zeros(2, N_TOKENS, dtype=torch.bool)
    padding[0, 5] = padding[1, 12] = True
    x, changed = tokens(), tokens()
    changed[padding] = 7.0
    before, after = (layer(x, key_padding_mask=padding) for x in (x, changed))
    torch.testing.assert_close(before[~padding], after[~padding], **CLOSE)
    assert not torch.allclose(layer(x), layer(changed), atol=1e-3)


def test_masks_forbid_and_bias(case):
    if not case.masked:
        pytest.skip("a mask does not reach all that the layer does")
    layer = case.make().eval()
    allowed = torch.rand(N_TOKENS, N_TOKENS) < 0.7
    allowed |= torch.eye(N_TOKENS, dtype=torch.bool)
    # Whoever a pattern lets a token see, one of them stays.
    allowed[:, ::2] = True
    allowed[:, 4] = torch.eye(N_TOKENS, dtype=torch.bool)[:, 4]
    x, changed = tokens(), tokens()
    changed[:, 4] = 7.0
    before, after = (layer(x, allowed) for x in (x, changed))
    rows = torch.arange(N_TOKENS) != 4
    torch.testing.assert_close(before[:, rows], after[:, rows], **CLOSE)
    infinite = torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf)
    torch.testing.assert_close(layer(x, infinite), before, **CLOSE)
    torch.testing.assert_close(layer(x, torch.zeros(N_TOKENS, N_TOKENS)), layer(x), **CLOSE)
    each = allowed.expand(2, HEADS, -1, -1)
    torch.testing.assert_close(layer(x, each), before, **CLOSE)


def test_causal_tokens_do_not_see_later_ones(case):
    if not case.causal:
        pytest.skip("a layer that takes no is_causal=True")
    layer = case.make().eval()
    x, changed = tokens(), tokens()
    changed[:, 9:] = 3.0
    before, after = (layer(x, is_causal=True)[:, :9] for x in (x, changed))
    torch.testing.assert_close(before, after, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_any_dtype(case, dtype):
    layer = case.make().eval()
    expected = layer(tokens())
    output = layer.to(dtype)(tokens(dtype=dtype))
    assert output.dtype == dtype
    assert output.isfinite().all()
    if dtype == torch.float64:
        torch.testing.assert_close(output.float(), expected, atol=1e-4, rtol=1e-4)


def test_mixed_precision_trains(case):
    layer = case.make()
    x = tokens().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(x)
    assert output.dtype == torch.bfloat16
    output.float().square().mean().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad.dtype == torch.float32 for p in layer.parameters())


def test_parameters_are_made_with_the_dtype_asked_for(case):
    layer = case.layer(DIM, 3, **case.options, dtype=torch.float64)
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.float64}


def test_evaluation_is_deterministic_and_training_drops(case):
    if not case.drops:
        pytest.skip("a layer without weights to drop")
    layer = case.make(attn_drop=0.5)
    x = tokens()
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_both_implementations_behind_it_agree(case):
    results = []
    for implementation in ("plain", "cpu"):
        layer, x = case.make(), tokens().requires_grad_()
        with attention_implementation(implementation):
            torch.manual_seed(3)
            output = layer(x)
            output.square().sum().backward()
        grads = [parameter.grad for parameter in layer.parameters()]
        results.append([output.detach(), x.grad, *grads])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_every_parameter_learns(case):
    layer = case.make()
    layer(tokens()).square().sum().backward()
    without = [name for name, x in layer.named_parameters() if x.grad is None or not x.grad.any()]
    assert without == []


def test_saved_weights_give_the_same(case):
    layer, other = case.make().eval(), case.layer(DIM, 3, **case.options).eval()
    assert not torch.allclose(layer(tokens()), other(tokens()))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer(tokens()), other(tokens()))
    assert torch.equal(layer(tokens()), copy.deepcopy(layer)(tokens()))


def test_gradients_equal_finite_differences(case):
    layer = case.make().double()
    x = tokens(1, seed=2, dtype=torch.float64).requires_grad_()
    parameters = [p for p in layer.parameters() if p.numel() < 200]

    def call(x, *_):
        torch.manual_seed(0)  # the same candidates every time
        return layer(x)

    assert torch.autograd.gradcheck(call, (x, *parameters), fast_mode=True)


def test_bad_inputs_are_refused(case):
    if case is TORCHS:
        pytest.skip("refuses in words of torch's layer: test_multihead.py")
    layer = case.make()
    x = tokens()
    if not case.takes_grids:
        with pytest.raises(ValueError, match=r"must be of shape \(batch, N, 24\); got \(17, 24\)"):
            layer(x[0])
    with pytest.raises(ValueError, match=r"must be of shape \(batch, N, 24\)"):
        layer(x[..., :20])
    with pytest.raises(ValueError, match=r"key_padding_mask must be boolean.*of shape"):
        layer(x, key_padding_mask=torch.zeros(2, 5, dtype=torch.bool))
    if case.masked:
        with pytest.raises(ValueError, match=r"attn_mask of shape .* cannot be broadcast"):
            layer(x, torch.ones(5, N_TOKENS, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"num_heads=5 does not divide dim=24\. Take one of 1, 2"):
        case.layer(24, 5, **case.options)
    if case.drops:
        with pytest.raises(ValueError, match=r"attn_drop=1 must lie in \[0, 1\)"):
            case.layer(24, 3, **case.options, attn_drop=1)
