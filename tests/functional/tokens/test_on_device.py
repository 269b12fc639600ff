"""`knn_attention` by default, on any device: ``pytest tests/functional/tokens --device cuda``."""

import pytest
import torch

from nearwise.functional.tokens import attend
from tests.functional.tokens.cases import METRICS, TOLERANCE, expected, random_tokens

PADDING = torch.arange(12) > 9
OPTIONS = [
    {},
    {"is_causal": True, "include_self": "always"},
    {"include_self": "never", "key_padding_mask": PADDING},
    {"attn_mask": torch.linspace(-1, 1, 144).view(12, 12)},
    {"candidates": torch.arange(0, 12, 2)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "none")
@pytest.mark.parametrize("metric", METRICS)
def test_it_equals_the_slow_reference_on_the_device(device, metric, options):
    tokens = random_tokens((2, 2, 12, 8), dtype=torch.float32)
    moved = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    found = attend(*(x.to(device) for x in tokens), 4, metric=metric, **moved)
    output, indices, weights = expected(*tokens, 4, metric=metric, **options)
    assert (found.indices.cpu() == indices).all()
    close = TOLERANCE[torch.float32]
    torch.testing.assert_close(found.output.cpu().double(), output, atol=close, rtol=close)
    torch.testing.assert_close(found.weights.cpu().double(), weights, atol=close, rtol=close)


@pytest.mark.parametrize("metric", METRICS)
def test_its_gradients_on_the_device_are_those_in_double_precision(device, metric):
    grads = []
    for where, dtype in ((device, torch.float32), ("cpu", torch.float64)):
        inputs = [x.to(where, dtype).requires_grad_() for x in random_tokens((1, 2, 12, 8))]
        attend(*inputs, 4, metric=metric).output.square().sum().backward()
        grads.append([x.grad.cpu().double() for x in inputs])
    torch.testing.assert_close(*grads, atol=1e-4, rtol=1e-4)
