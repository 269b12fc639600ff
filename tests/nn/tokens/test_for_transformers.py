"""Models of transformers run with k-NN attention by one argument."""

import pytest
import torch

from nearwise.nn import transformers_attention

transformers = pytest.importorskip("transformers")

SIZES = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 48,
}


def config(name):
    return getattr(transformers, f"{name}Config")(**SIZES)


def model(name, attention):
    torch.manual_seed(0)
    made = getattr(transformers, f"{name}Model")._from_config(
        config(name), attn_implementation=attention
    )
    return made.eval()


@pytest.mark.parametrize("name", ["ViT", "Dinov2"])
def test_with_all_neighbors_it_is_the_model_itself(name):
    images = torch.randn(2, 3, 32, 32)
    expected = model(name, "sdpa")(images).last_hidden_state
    found = model(name, transformers_attention(17))(images).last_hidden_state
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["ViT", "Dinov2"])
def test_with_few_neighbors_it_is_another_and_learns(name):
    images = torch.randn(2, 3, 32, 32)
    nearest = model(name, transformers_attention(3))
    assert nearest.config._attn_implementation == "nearwise_knn_matmul_3"
    difference = nearest(images).last_hidden_state - model(name, "sdpa")(images).last_hidden_state
    assert difference.abs().max() > 1e-4
    nearest.train()(images).last_hidden_state.square().mean().backward()
    names = dict(nearest.named_parameters())
    grads = [p.grad for n, p in names.items() if "attention" in n and n.endswith("weight")]
    assert len(grads) == 2 * 4
    assert all(grad is not None and grad.any() for grad in grads)


def test_a_causal_model_with_padding_and_shared_key_heads():
    sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 50, "num_hidden_layers": 2}
    made = []
    for attention in ("sdpa", transformers_attention(64)):
        torch.manual_seed(0)
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        chosen = transformers.LlamaConfig(**sizes, **heads)
        made.append(
            transformers.LlamaModel._from_config(chosen, attn_implementation=attention).eval()
        )
    ids = torch.randint(0, 50, (2, 11))
    right, left = torch.ones(2, 2, 11, dtype=torch.long)
    right[1, 8:] = left[1, :3] = 0
    for kept in (None, right, left):
        expected, found = (m(ids, attention_mask=kept).last_hidden_state for m in made)
        rows = torch.ones_like(ids).bool() if kept is None else kept.bool()
        torch.testing.assert_close(found[rows], expected[rows], atol=1e-5, rtol=1e-5)


def test_a_wrong_number_of_neighbors_is_refused():
    with pytest.raises(ValueError, match="n_neighbors=0 must be an integer"):
        transformers_attention(0)
