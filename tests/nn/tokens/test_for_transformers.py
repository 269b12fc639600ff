"""Models of transformers run with k-NN attention by one argument, and keep it when saved."""

import subprocess
import sys

import pytest
import torch

from nearwise.functional.tokens import KNNAttentionOutput
from nearwise.nn import transformers_attention

transformers = pytest.importorskip("transformers")

VISION = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 48,
}
TEXT = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
GPT2 = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4}
SIZES = {
    "ViT": VISION,
    "Dinov2": VISION,
    "Bert": TEXT,
    "GPT2": GPT2 | {"bos_token_id": 1, "eos_token_id": 2},
    "Llama": TEXT | {"num_key_value_heads": 2},
    "T5": {
        "vocab_size": 50,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
    },
    "Bart": {
        "vocab_size": 50,
        "d_model": 32,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_layers": 2,
        "decoder_layers": 2,
    },
    "CLIP": {"text_config": TEXT | {"eos_token_id": 2}, "vision_config": VISION},
}
ALL_KEYS = 64


def config(name, **more):
    return getattr(transformers, f"{name}Config")(**SIZES[name] | more)


def model(name, attention, kind="Model", **more):
    torch.manual_seed(0)
    cls = getattr(transformers, name + kind)
    made = cls._from_config(config(name, **more), attn_implementation=attention).eval()
    for weight in made.parameters():  # far from 0, so that attention is far from even
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=0.3)
    return made


def inputs(name, padded=None):
    """Images, or token ids with nothing, the end or the beginning of the second row padded."""
    torch.manual_seed(1)
    images, ids = torch.randn(2, 3, 32, 32), torch.randint(3, 50, (2, 9))
    if name in ("ViT", "Dinov2"):
        return {"pixel_values": images}
    given = {"input_ids": ids}
    if padded is not None:
        given["attention_mask"] = torch.ones(2, 9, dtype=torch.long)
        given["attention_mask"][1, slice(6, 9) if padded == "right" else slice(3)] = 0
    if name in ("T5", "Bart"):
        given["decoder_input_ids"] = ids[:, :5]
    if name == "CLIP":
        given |= {"pixel_values": images}
    return given


def kept_rows(given):
    """Tokens that are not padding, of a text model's output."""
    return given["attention_mask"].bool()


RUNS = [
    *((name, None) for name in SIZES),
    *((name, side) for name in ("Bert", "GPT2", "Llama") for side in ("right", "left")),
    ("T5", "right"),
]


@pytest.mark.parametrize(("name", "padded"), RUNS)
def test_with_all_neighbors_it_is_the_model_itself(name, padded):
    given = inputs(name, padded)
    expected = model(name, "eager")(**given)
    found = model(name, transformers_attention(ALL_KEYS))(**given)
    for part in ("image_embeds", "text_embeds") if name == "CLIP" else ("last_hidden_state",):
        rows = kept_rows(given) if padded and name != "T5" else ...
        torch.testing.assert_close(found[part][rows], expected[part][rows], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["ViT", "Dinov2"])
def test_with_few_neighbors_it_is_another_and_learns(name):
    given = inputs(name)
    nearest = model(name, transformers_attention(3))
    assert nearest.config._attn_implementation == "nearwise_knn_matmul_3"
    difference = nearest(**given).last_hidden_state - model(name, "sdpa")(**given).last_hidden_state
    assert difference.abs().max() > 1e-2
    nearest.train()(**given).last_hidden_state.square().mean().backward()
    names = dict(nearest.named_parameters())
    grads = [p.grad for n, p in names.items() if "attention" in n and n.endswith("weight")]
    assert len(grads) == 2 * 4
    assert all(grad is not None and grad.any() for grad in grads)


# Weights

RETURNED = {
    "T5": ("encoder_attentions", "decoder_attentions", "cross_attentions"),
    **dict.fromkeys(["ViT", "Bert", "GPT2", "Llama"], ("attentions",)),
}


@pytest.mark.parametrize("name", RETURNED)
def test_weights_are_those_of_eager_attention_with_all_neighbors(name):
    given = inputs(name, None if name in ("ViT", "T5") else "right")
    expected = model(name, "eager")(**given, output_attentions=True)
    found = model(name, transformers_attention(ALL_KEYS))(**given, output_attentions=True)
    for part in RETURNED[name]:
        assert len(found[part]) == len(expected[part]) == 2
        for ours, theirs in zip(found[part], expected[part], strict=True):
            if "attention_mask" in given:
                rows = kept_rows(given)
                ours, theirs = ours.transpose(1, 2)[rows], theirs.transpose(1, 2)[rows]
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", RETURNED)
def test_weights_of_few_neighbors_are_zero_elsewhere_and_sum_to_one(name):
    found = model(name, transformers_attention([3, 2]))(**inputs(name), output_attentions=True)
    for part in RETURNED[name]:
        for n_neighbors, weights in zip((3, 2), found[part], strict=True):
            assert (weights > 0).sum(-1).max() == n_neighbors
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


@pytest.mark.parametrize("name", RETURNED)
def test_without_a_request_no_dense_weights_are_built(name, monkeypatch):
    built = []
    monkeypatch.setattr(KNNAttentionOutput, "dense_weights", lambda *args: built.append(args))
    found = model(name, transformers_attention(3))(**inputs(name))
    assert not built
    assert not any(part in found for part in RETURNED[name])


DEPTHS = {"T5": ("num_layers", "num_decoder_layers"), "Bart": ("encoder_layers", "decoder_layers")}


@pytest.mark.parametrize("name", DEPTHS)
@pytest.mark.parametrize("depths", [(2, 3), (3, 2)])
def test_numbers_per_layer_are_as_many_as_the_deeper_of_encoder_and_decoder_has(name, depths):
    made = dict(zip(DEPTHS[name], depths, strict=True))
    nearest = model(name, transformers_attention([4, 2, 3]), **made)
    found = nearest(**inputs(name), output_attentions=True)
    for part, depth in zip(RETURNED["T5"], (*depths, depths[1]), strict=True):
        assert [int((of > 0).sum(-1).max()) for of in found[part]] == [4, 2, 3][:depth]
    nearest = model(name, transformers_attention([4, 2]), **made)
    with pytest.raises(ValueError, match="n_neighbors has 2 entries, but the model has 3 layers"):
        nearest(**inputs(name))


# Generation

GENERATES = {"GPT2": "LMHeadModel", "Llama": "ForCausalLM"}


@pytest.mark.parametrize("name", GENERATES)
@pytest.mark.parametrize("padded", [None, "left"])
def test_a_token_by_token_pass_with_a_cache_is_the_pass_over_all(name, padded):
    given = inputs(name, padded)
    nearest = model(name, transformers_attention([3, 2]), GENERATES[name])
    mask = given.get("attention_mask", torch.ones(2, 9, dtype=torch.long))
    at = (mask.cumsum(1) - 1).clamp_min(0)
    expected = nearest(given["input_ids"], attention_mask=mask, position_ids=at).logits
    cache, found = transformers.DynamicCache(), []
    for now in [slice(0, 5), *(slice(i, i + 1) for i in range(5, 9))]:
        step = {"attention_mask": mask[:, : now.stop], "position_ids": at[:, now]}
        out = nearest(given["input_ids"][:, now], **step, past_key_values=cache, use_cache=True)
        found.append(out.logits)
    rows = mask.bool()
    torch.testing.assert_close(torch.cat(found, 1)[rows], expected[rows], atol=1e-5, rtol=1e-5)


def test_a_cache_of_fixed_size_changes_nothing():
    nearest = model("Llama", transformers_attention([3, 2]), "ForCausalLM")
    ids = inputs("Llama")["input_ids"]
    expected = nearest(ids).logits
    cache = transformers.StaticCache(config=nearest.config, max_cache_len=16)
    found = [nearest(ids[:, :8], past_key_values=cache, use_cache=True).logits]
    found.append(nearest(ids[:, 8:], past_key_values=cache, use_cache=True).logits)
    torch.testing.assert_close(torch.cat(found, 1), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [*GENERATES, "T5"])
def test_with_all_neighbors_the_same_tokens_are_generated(name):
    kind = GENERATES.get(name, "ForConditionalGeneration")
    given = inputs(name, "left")
    given.pop("decoder_input_ids", None)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    made = (model(name, by, kind) for by in ("eager", transformers_attention(ALL_KEYS)))
    expected, found = (m.generate(**given, **options) for m in made)
    assert found.tolist() == expected.tolist()


# Saved models

IN_A_NEW_PROCESS = """
import sys
import torch
import transformers

root, *classes = sys.argv[1:]

def outputs(name):
    model = getattr(transformers, name).from_pretrained(f"{root}/{name}").eval()
    given, expected = torch.load(f"{root}/{name}/run.pt")
    return model(**given)[0], expected

for name in classes:
    try:
        outputs(name)
    except ValueError as error:
        assert "nearwise_knn_" in str(error), error
    else:
        raise AssertionError(f"{name} was loaded without its attention")

from nearwise.nn import restore_transformers_attention
restore_transformers_attention()
for name in classes:
    found, expected = outputs(name)
    assert torch.equal(found, expected), name
print("equal", len(classes))
"""


def test_another_process_refuses_a_saved_model_or_restores_it_exactly(tmp_path):
    made = {
        "ViTForImageClassification": ("ViT", transformers_attention([3, 5], metric="euclidean")),
        "GPT2LMHeadModel": ("GPT2", transformers_attention(3, metric="cosine")),
        "AutoModel": ("CLIP", {"vision_config": transformers_attention(4)}),
    }
    for cls, (name, attention) in made.items():
        kind = "Model" if cls == "AutoModel" else cls.removeprefix(name)
        saved, given = model(name, attention, kind), inputs(name)
        saved.save_pretrained(tmp_path / cls)
        torch.save((given, saved(**given)[0].detach()), tmp_path / cls / "run.pt")
    command = [sys.executable, "-c", IN_A_NEW_PROCESS, str(tmp_path), *made]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.stdout.split("\n")[-2] == "equal 3", run.stderr


PICKLED = """
import sys
import torch

for model, given, expected in torch.load(sys.argv[1], weights_only=False):
    assert torch.equal(model(**given)[0], expected)
    print("equal")
"""


def test_pickled_models_run_in_a_process_that_called_nothing(tmp_path):
    parts = {"vision_config": transformers_attention(4), "text_config": "sdpa"}
    made = {"GPT2": transformers_attention([4, 2], metric="cosine"), "CLIP": parts}
    runs = []
    for name, by in made.items():
        nearest, given = model(name, by), inputs(name)
        runs.append((nearest, given, nearest(**given)[0].detach()))
    torch.save(runs, tmp_path / "models.pt")
    command = [sys.executable, "-c", PICKLED, str(tmp_path / "models.pt")]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.stdout == "equal\n" * 2, run.stderr


def test_models_that_copy_their_configuration_while_they_run_compile_in_one_graph():
    nearest, given = model("Bart", transformers_attention([4, 2])), inputs("Bart")
    compiled = torch.compile(nearest, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(**given)[0], nearest(**given)[0])


@pytest.mark.parametrize("cls", ["ViTModel", "AutoModel"])
@pytest.mark.parametrize("other", ["sdpa", "nearwise_knn_matmul_6"])
def test_another_attention_comes_only_by_name(tmp_path, cls, other):
    transformers_attention(6)
    model("ViT", transformers_attention(3)).save_pretrained(tmp_path)
    loaded = getattr(transformers, cls).from_pretrained(tmp_path)
    assert loaded.config._attn_implementation == "nearwise_knn_matmul_3"
    loaded = getattr(transformers, cls).from_pretrained(tmp_path, attn_implementation=other)
    assert loaded.config._attn_implementation == other


@pytest.mark.parametrize("cls", ["CLIPModel", "AutoModel", "CLIPConfig", "AutoConfig"])
def test_parts_that_are_not_named_keep_their_saved_attention(tmp_path, cls):
    of_all, other = transformers_attention(3), transformers_attention(2)
    model("CLIP", of_all).save_pretrained(tmp_path)
    load = getattr(transformers, cls).from_pretrained
    for named in ({"vision_config": other}, {"text_config": "eager"}, {"": "sdpa"}):
        loaded = load(tmp_path, attn_implementation=named)
        config = getattr(loaded, "config", loaded)
        found = {"": config, "text_config": config.text_config}
        found["vision_config"] = config.vision_config
        found = {key: part._attn_implementation for key, part in found.items()}
        assert found == dict.fromkeys(found, of_all) | named


@pytest.mark.parametrize("cls", ["BertModel", "AutoModel"])
def test_an_attention_that_is_named_comes_with_what_it_alone_allows(tmp_path, cls):
    model("Bert", transformers_attention(3)).save_pretrained(tmp_path)
    options = {"attn_implementation": "eager", "output_attentions": True}
    loaded = getattr(transformers, cls).from_pretrained(tmp_path, **options)
    assert loaded.config._attn_implementation == "eager"
    assert len(loaded(**inputs("Bert")).attentions) == 2


def test_a_configuration_that_is_given_brings_its_own_attention(tmp_path):
    model("GPT2", transformers_attention(3)).save_pretrained(tmp_path)
    load = transformers.GPT2Model.from_pretrained
    assert load(tmp_path, config=config("GPT2")).config._attn_implementation == "sdpa"
    saved = transformers.AutoConfig.from_pretrained(tmp_path)
    assert load(tmp_path, config=saved).config._attn_implementation == "nearwise_knn_matmul_3"


def test_a_forged_configuration_is_refused(tmp_path):
    model("ViT", transformers_attention(3)).save_pretrained(tmp_path)
    written = (tmp_path / "config.json").read_text()
    for forged in ("nearwise_knn_matmul_0", "nearwise_knn_other_3", "nearwise_knn_matmul_3_4"):
        (tmp_path / "config.json").write_text(written.replace("nearwise_knn_matmul_3", forged))
        with pytest.raises(ValueError, match=r"n_neighbors=0|not supported"):
            transformers.ViTModel.from_pretrained(tmp_path)


# What is refused


@pytest.mark.parametrize("name", ["ViT", "GPT2", "T5"])
def test_a_number_per_layer_must_fit_the_layers(name):
    nearest = model(name, transformers_attention([3, 2, 3]))
    with pytest.raises(ValueError, match="n_neighbors has 3 entries, but the model has 2 layers"):
        nearest(**inputs(name))


def test_layers_that_cannot_be_told_apart_take_only_one_number():
    chosen = config("ViT")
    chosen._attn_implementation = transformers_attention([3, 2])
    from transformers.models.vit import modeling_vit

    alone = modeling_vit.ViTLayer(chosen)
    with pytest.raises(ValueError, match="has no layer index"):
        alone(torch.randn(1, 17, 24))
    chosen = transformers.AlbertConfig(**TEXT, embedding_size=16)
    shared = transformers.AlbertModel._from_config(
        chosen, attn_implementation=transformers_attention([3, 2])
    )
    with pytest.raises(ValueError, match="its model shares one among all"):
        shared(torch.ones(1, 4, dtype=torch.long))


def test_models_whose_attention_would_stay_another_are_refused():
    name = transformers_attention(3)
    sizes = {"vocab_size": 50, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}
    chosen = transformers.XLNetConfig(**sizes)
    with pytest.raises(ValueError, match="XLNetModel does not use transformers' attention inter"):
        transformers.XLNetModel._from_config(chosen, attn_implementation=name)
    chosen = transformers.Gemma2Config(**TEXT, num_key_value_heads=2, head_dim=8)
    capped = transformers.Gemma2Model._from_config(chosen, attn_implementation=name)
    with pytest.raises(ValueError, match="no softcap, which Gemma2Attention needs"):
        capped(torch.ones(1, 4, dtype=torch.long))


@pytest.mark.parametrize(
    ("n_neighbors", "metric", "message"),
    [
        (0, "matmul", "n_neighbors=0 must be an integer"),
        ([3, 0], "matmul", "n_neighbors=0 must be an integer"),
        ("3", "matmul", "n_neighbors='3' must be an integer"),
        ([], "matmul", "n_neighbors is empty"),
        (3, "dot", "metric='dot' is not one of matmul, cosine, euclidean"),
    ],
)
def test_wrong_arguments_are_refused(n_neighbors, metric, message):
    with pytest.raises(ValueError, match=message):
        transformers_attention(n_neighbors, metric=metric)
