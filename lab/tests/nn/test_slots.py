"""Sums over ranked slots: both implementations equal the loops, with their gradients."""

import pytest
import torch
from nearwise_lab.nn import slots

from nearwise.functional import attention_implementation
from tests.functional.tokens.cases import IMPLEMENTATIONS

SHAPE = (2, 3, 7, 5)  # batch, heads, queries, channels


def draw(n_slots=4, n_keys=9, dtype=torch.float64):
    torch.manual_seed(0)
    batch, heads, n_queries, width = SHAPE
    value = torch.randn(batch, heads, n_keys, width).to(dtype)
    indices = torch.randint(-1, n_keys, (batch, heads, n_queries, n_slots), dtype=torch.int32)
    weights = torch.randn(batch, heads, n_queries, n_slots).to(dtype)
    return value, indices, weights, torch.randn(n_slots, width).to(dtype)


def slow(value, indices, weights, kernel):
    output = torch.zeros(*indices.shape[:3], value.shape[3], dtype=value.dtype)
    for b, h, i, s in torch.cartesian_prod(*map(torch.arange, indices.shape)).tolist():
        j = int(indices[b, h, i, s])
        if j >= 0:
            output[b, h, i] += weights[b, h, i, s] * kernel[s] * value[b, h, j]
    return output


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_it_equals_the_loops(implementation, dtype):
    value, indices, weights, kernel = draw(dtype=dtype)
    with attention_implementation(implementation):
        output = slots.slot_sum(value, indices, weights, kernel)
    assert output.dtype == dtype
    close = 5e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(output, slow(*draw(dtype=dtype)), atol=close, rtol=close)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_row_without_slots_is_zero_whatever_the_row_before_it_holds(implementation):
    value, indices, weights, kernel = draw()
    indices[..., 0, :], weights[..., 0, :] = 3, torch.nan
    indices[..., 1, :], weights[..., 1, :] = -1, 0.0
    with attention_implementation(implementation):
        output = slots.slot_sum(value, indices, weights, kernel)
    assert output[..., 0, :].isnan().all()
    assert (output[..., 1, :] == 0).all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_gradients_equal_finite_differences(implementation):
    value, indices, weights, kernel = draw()
    inputs = [x.requires_grad_() for x in (value, weights, kernel)]
    with attention_implementation(implementation):
        assert torch.autograd.gradcheck(lambda v, w, k: slots.slot_sum(v, indices, w, k), inputs)


@pytest.mark.parametrize("strided", [0, 2, 3])
def test_tensors_that_do_not_lie_in_one_piece(strided):
    parts = list(draw())
    whole = slots.slot_sum(*parts)
    parts[strided] = parts[strided].mT.contiguous().mT
    torch.testing.assert_close(slots.slot_sum(*parts), whole)


def test_what_is_kept_grows_with_n_times_k():
    value, indices, weights, kernel = draw()
    inputs = [x.requires_grad_() for x in (value, weights, kernel)]
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()), lambda x: x):
        slots.slot_sum(inputs[0], indices, inputs[1], inputs[2])
    assert sum(sizes) == value.numel() + indices.numel() + weights.numel() + kernel.numel()


def test_the_operators_keep_the_promises_of_torch_library():
    value, indices, weights, kernel = draw()
    inputs = [x.requires_grad_() for x in (value, weights, kernel)]
    torch.library.opcheck(
        torch.ops.nearwise.slot_sum.default, (inputs[0], indices, inputs[1], inputs[2])
    )
    detached = [x.detach() for x in (value, indices, weights, kernel)]
    grad = torch.ones(SHAPE, dtype=torch.float64)
    torch.library.opcheck(torch.ops.nearwise.slot_sum_backward.default, (*detached, grad))
