"""Sums over ranked neighbors with a matrix a rank."""

import pytest
import torch
from nearwise_lab.nn.slots import _mix, slot_mix

from nearwise.functional import attention_implementation

B, H, M, N, K, C, D = 2, 3, 11, 7, 4, 5, 6


def problem(dtype=torch.float64, n_tokens=M, n_queries=N):
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(B, H, n_tokens, C, generator=generator, dtype=torch.float64)
    indices = torch.randint(-1, n_tokens, (B, H, n_queries, K), generator=generator)
    weights = torch.rand(B, H, n_queries, K, generator=generator, dtype=torch.float64)
    kernel = torch.randn(K, C, D, generator=generator, dtype=torch.float64)
    weights = weights.masked_fill(indices < 0, 0.0)
    floats = [x.to(dtype).requires_grad_() for x in (value, weights, kernel)]
    return floats[0], indices.int(), *floats[1:]


def by_loops(value, indices, weights, kernel):
    output = torch.zeros(B, H, N, D, dtype=value.dtype)
    for b in range(B):
        for h in range(H):
            for i in range(N):
                for k in range(K):
                    at = indices[b, h, i, k]
                    if at >= 0:
                        output[b, h, i] += weights[b, h, i, k] * value[b, h, at] @ kernel[k]
    return output


@pytest.mark.parametrize("implementation", ["plain", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_it_equals_the_loops(implementation, dtype):
    arguments = problem(dtype)
    with attention_implementation(implementation):
        output = slot_mix(*arguments)
    assert output.dtype == dtype
    expected = by_loops(*(x.double() if x.is_floating_point() else x for x in arguments))
    close = {torch.bfloat16: 5e-2, torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(output.double(), expected, atol=close, rtol=close)


@pytest.mark.parametrize("implementation", ["plain", "cpu"])
def test_gradients_equal_finite_differences(implementation):
    value, indices, weights, kernel = problem()

    def call(value, weights, kernel):
        # Weights of empty slots are constants: 0.
        return slot_mix(value, indices, weights.masked_fill(indices < 0, 0.0), kernel)

    with attention_implementation(implementation):
        assert torch.autograd.gradcheck(call, (value, weights, kernel))


def test_what_is_kept_grows_with_n_times_k():
    kept = {}
    for n in (20, 40):
        sizes = []
        arguments = problem(torch.float32, n, n)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, sizes=sizes: sizes.append(x.numel()) or x, lambda x: x
        ):
            slot_mix(*arguments)
        kept[n] = sum(sizes)
        # Values, positions, weights and matrices: never a value for each slot.
        assert kept[n] == B * H * n * (C + 2 * K) + K * C * D
    assert kept[40] - kept[20] == B * H * 20 * (C + 2 * K)


def test_the_operator_keeps_the_promises_of_torch_library():
    torch.library.opcheck(_mix, problem(torch.float32))
