"""Layers of published code load by name and compute what that code computed."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from nearwise_lab.nn import load_reference_layer
from nearwise_lab.nn.reference import reference_state

FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("*.npz"))


def load(path):
    with np.load(path) as arrays:
        recorded = {key: torch.from_numpy(arrays[key]) for key in arrays if key != "args_json"}
        return json.loads(str(arrays["args_json"])), recorded


def part(recorded, prefix):
    return {key.removeprefix(prefix): x for key, x in recorded.items() if key.startswith(prefix)}


def build(meta, recorded, legacy_layout=True):
    weights = part(recorded, "sd.")
    return load_reference_layer(meta["layer"], meta["kwargs"], weights, legacy_layout=legacy_layout)


def test_there_are_fixtures():
    assert len(FIXTURES) == 8


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.stem)
def test_outputs_and_gradients_are_those_recorded(path):
    meta, recorded = load(path)
    layer = build(meta, recorded)
    assert not layer.training
    x = recorded["input"].requires_grad_()
    drawn = recorded.get("rand_idx", recorded.get("spat_idx"))
    output = layer(x) if drawn is None else layer(x, candidates=drawn)
    torch.testing.assert_close(output, recorded["output"], atol=1e-5, rtol=1e-5)
    (output * recorded["grad_output"]).sum().backward()
    torch.testing.assert_close(x.grad, recorded["grad_input"], atol=1e-4, rtol=1e-4)
    expected = reference_state(meta["layer"], part(recorded, "pgrad."))
    parameters = dict(layer.named_parameters())
    assert expected.keys() <= parameters.keys()
    for name, grad in expected.items():
        torch.testing.assert_close(parameters[name].grad, grad, atol=1e-4, rtol=1e-4)


WITHOUT_DEFECT = ("convnn_h1_coord", "convnn_h1_matmul_all", "kvt", "natten")


@pytest.mark.parametrize(
    "path", [p for p in FIXTURES if p.stem.startswith(WITHOUT_DEFECT)], ids=lambda p: p.stem
)
def test_one_head_without_sampling_is_the_same_in_the_clean_layout(path):
    meta, recorded = load(path)
    output = build(meta, recorded, legacy_layout=False)(recorded["input"])
    torch.testing.assert_close(output, recorded["output"], atol=1e-5, rtol=1e-5)


def test_sampled_layouts_differ_only_for_tokens_that_are_candidates_themselves():
    path = next(p for p in FIXTURES if "spatial" in p.stem)
    meta, recorded = load(path)
    layer, x, drawn = build(meta, recorded, False), recorded["input"], recorded["spat_idx"]
    output = layer(x)
    torch.testing.assert_close(layer(x, candidates=drawn), output)
    others = torch.ones(x.shape[1], dtype=torch.bool)
    others[drawn] = False
    close = {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(output[:, others], recorded["output"][:, others], **close)
    # Some token is found as its own neighbor a second time there.
    assert (output - recorded["output"]).abs().max() > 0.1


def test_random_candidates_are_drawn_in_evaluation_too_with_the_legacy_layout():
    path = next(p for p in FIXTURES if "random" in p.stem)
    meta, recorded = load(path)
    layer = build(meta, recorded)
    torch.manual_seed(meta["fwd_seed"])
    output = layer(recorded["input"])
    torch.testing.assert_close(output, recorded["output"], atol=1e-5, rtol=1e-5)
    clean = build(meta, recorded, legacy_layout=False)
    assert torch.equal(clean(recorded["input"]), clean(recorded["input"]))


def test_several_heads_are_mixed_only_with_the_legacy_layout():
    path = next(p for p in FIXTURES if "h3_cosine_random" in p.stem)
    meta, recorded = load(path)
    x, order = recorded["input"], torch.arange(16, -1, -1)
    everyone = torch.arange(17)
    clean, legacy = (build(meta, recorded, legacy_layout=x) for x in (False, True))
    turned = clean(x[:, order], candidates=everyone)
    torch.testing.assert_close(turned, clean(x, candidates=everyone)[:, order])
    mixed = legacy(x[:, order], candidates=everyone)
    assert (mixed - legacy(x, candidates=everyone)[:, order]).abs().max() > 0.1


def test_weights_may_be_arrays_and_loading_leaves_the_random_state():
    meta, recorded = load(FIXTURES[0])
    before = torch.get_rng_state()
    arrays = {key: x.numpy() for key, x in part(recorded, "sd.").items()}
    layer = load_reference_layer(meta["layer"], meta["kwargs"], arrays, legacy_layout=True)
    assert torch.equal(before, torch.get_rng_state())
    torch.testing.assert_close(layer(recorded["input"]), build(meta, recorded)(recorded["input"]))


def test_every_ratio_of_branches_that_exists_there_loads_here():
    kwargs = {"d_hidden": 12, "num_heads": 3, "K": 3, "kernel_size": 3}
    convnn = {f"convnn.W_{x}.weight": torch.randn(12, 12) for x in "qkvo"}
    convnn["convnn.conv.weight"] = torch.ones(4, 1, 3)
    unused = {
        "pointwise_linear.weight": torch.ones(12, 12),
        "pointwise_linear.bias": torch.ones(12),
    }
    layer = load_reference_layer(
        "BranchConv", {**kwargs, "branch_ratio": 1}, {**convnn, **unused}, legacy_layout=True
    )
    assert layer.pointwise is None
    with pytest.raises(ValueError, match="no such layer exists"):
        load_reference_layer("BranchConv", {**kwargs, "branch_ratio": 0.1}, {})


TWO = {"d_hidden": 8, "num_heads": 2}
EYE = {f"W_{x}.weight": torch.eye(8) for x in "qkvo"}
NO_V = {key: x for key, x in EYE.items() if "W_v" not in key}
MISTAKES = [
    ("MultiHeadKvtAtention", TWO, EYE, "Did you mean 'MultiHeadKvtAttention'"),
    ("MultiHeadAttention", {**TWO, "heads": 2}, EYE, "has no argument 'heads'"),
    ("MultiHeadAttention", {"d_hidden": 8}, EYE, "needs the arguments num_heads"),
    ("MultiHeadAttention", {**TWO, "d_hidden": 16}, EYE, r"fit .*: proj\.weight should be"),
    # A missing weight is named as it is there.
    ("ConvNNAttention", {**TWO, "K": 3}, NO_V, r"W_v\.weight is missing\. Found: W_k\.weight, W_o"),
    ("Attention", TWO, {}, r"W_q\.weight is missing\. Found: none"),
    ("BranchAttention", {**TWO, "K": 3}, {f"attention.{key}": x for key, x in NO_V.items()},
     r"attention\.W_v\.weight is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kwargs", "weights", "message"), MISTAKES, ids=lambda x: "")
def test_mistakes_are_named(name, kwargs, weights, message):
    with pytest.raises(ValueError, match=message):
        load_reference_layer(name, kwargs, weights)


@pytest.mark.parametrize("legacy_layout", [True, False])
def test_given_candidates_are_tensors_arrays_or_lists_of_tokens(legacy_layout):
    path = next(p for p in FIXTURES if "random" in p.stem)
    meta, recorded = load(path)
    layer, x = build(meta, recorded, legacy_layout), recorded["input"]
    drawn = recorded["rand_idx"]
    wanted = layer(x, candidates=drawn)
    for given in (drawn.numpy(), drawn.tolist(), drawn.int()):
        assert torch.equal(layer(x, candidates=given), wanted)
    for wrong, said in (
        ([3, 17], "between 3 and 17, but the keys are 0 to 16"),
        ([-1, 3], "between -1 and 3, but"),
        ([0.0, 3.0], r"must be integer positions of keys.*; got torch\.float32 of shape \(2,\)"),
        ([True] * 17, r"got torch\.bool of shape \(17,\)"),
        (torch.tensor(3), r"got torch\.int64 of shape \(\)"),
        (torch.arange(0), "candidates is empty. Name some of the 17 keys"),
    ):
        with pytest.raises(ValueError, match=said):
            layer(x, candidates=wrong)
