"""The layers of the published ConvNN code as plain functions of its weights, defects included.

Written from its description: weights and arguments by its names, tokens (B, N, dim). Every function
is differentiable, also where that code is not.
"""

import math

import torch
import torch.nn.functional as F


def _heads(x, num_heads):
    return x.unflatten(2, (num_heads, -1)).transpose(1, 2)


def _merged(heads):
    return heads.transpose(1, 2).flatten(2)


def _scrambled(heads):
    """Every head's numbers (N, D), read row by row as (D, N)."""
    n_tokens, width = heads.shape[2:]
    blocks = [block.flatten().view(width, n_tokens).T for block in heads.flatten(0, 1)]
    return torch.stack(blocks).view(heads.shape)


def _softmax_attention(query, key, value, scale, allowed=None):
    scores = torch.einsum("bhid,bhjd->bhij", query, key) * scale
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), value)


def attention(w, x, a, drawn=None):
    names = (f"W_{part}.weight" for part in "qkv")
    heads = [_heads(x @ w[name].T, a["num_heads"]) for name in names]
    scale = (a["d_hidden"] // a["num_heads"]) ** -0.5
    return _merged(_softmax_attention(*heads, scale)) @ w["W_o.weight"].T


def convnn(w, x, a, drawn=None):
    n_tokens, num_heads = x.shape[1], a["num_heads"]
    width, sampled = x.shape[2] // num_heads, drawn is not None
    is_distance = a["magnitude_type"] == "euclidean"

    def project(part, tokens):
        heads = _heads(tokens @ w[f"W_{part}.weight"].T, num_heads)
        if not a.get("coordinate_encoding", False):
            return heads
        places = torch.linspace(-1, 1, heads.shape[2], dtype=x.dtype)[:, None]
        return torch.cat([heads, places.expand(*heads.shape[:3], 1)], dim=-1)

    rows, values = project("k", x), project("v", x)
    columns = project("q", x[:, drawn] if sampled else x)
    if a["magnitude_type"] == "cosine":
        rows, columns = (y / y.norm(dim=-1, keepdim=True) for y in (rows, columns))
    scores = torch.einsum("bhid,bhjd->bhij", rows, columns)
    if a["magnitude_type"] == "matmul":
        scores = scores / math.sqrt(width)
    if is_distance:
        scores = (rows[:, :, :, None] - columns[:, :, None]).norm(dim=-1)
    if sampled:
        itself = torch.zeros(scores.shape[2:], dtype=torch.bool)
        itself[drawn, torch.arange(len(drawn))] = True
        scores = scores.masked_fill(itself, 1.1 if is_distance else -0.1)
    best = scores.topk(a["K"] - sampled, largest=not is_distance)
    at, scores = best.indices, best.values
    if sampled:
        own = torch.arange(n_tokens)[:, None].expand(*scores.shape[:3], 1)
        at = torch.cat([own, drawn[at]], dim=-1)
        scores = torch.cat([torch.ones_like(own, dtype=x.dtype), scores], dim=-1)
    if a.get("softmax_topk_val", True):
        factors = torch.softmax(-scores if is_distance else scores, dim=-1)
    else:
        factors = 1 / (scores + 1e-8) if is_distance else scores
    slots = [
        factors[..., slot, None] * values.gather(2, at[..., slot, None].expand(values.shape))
        for slot in range(a["K"])
    ]
    heads = _slot_convolution(w, torch.stack(slots, dim=-1))
    if num_heads > 1:
        heads = _scrambled(heads)
    return _merged(heads) @ w["W_o.weight"].T


def _slot_convolution(w, slots):
    """Weighed values (B, H, N, C, K) to (B, H, N, D), by the shapes of the weights."""
    if "conv.0.weight" in w:
        between = torch.einsum("ck,bhnck->bhnc", w["conv.0.weight"][:, 0], slots)
        return between @ w["conv.1.weight"][:, :, 0].T
    kernel = w["conv.weight"]
    if kernel.shape[1] == 1 and slots.shape[3] > 1:
        return torch.einsum("ck,bhnck->bhnc", kernel[:, 0], slots)
    return torch.einsum("ock,bhnck->bhno", kernel, slots)


def conv1d(w, x, a, drawn=None):
    heads = _heads(x @ w["W_x.weight"].T + w["W_x.bias"], a["num_heads"])
    n_tokens, before = x.shape[1], (a["kernel_size"] - 1) // 2
    columns = []
    for at in range(n_tokens):
        total = w["conv.bias"]
        for step in range(a["kernel_size"]):
            if 0 <= at + step - before < n_tokens:
                total = total + heads[:, :, at + step - before] @ w["conv.weight"][:, :, step].T
        columns.append(total.expand(*heads.shape[:2], -1))
    heads = _scrambled(torch.stack(columns, dim=2))
    return _merged(heads) @ w["W_o.weight"].T + w["W_o.bias"]


def _branching(other, name):
    def layer(w, x, a, drawn=None):
        def part(prefix):
            start = f"{prefix}."
            return {key.removeprefix(start): y for key, y in w.items() if key.startswith(start)}

        width = int(a["branch_ratio"] * x.shape[2])
        if width == 0:
            return other(part(name), x, a)
        if width == x.shape[2]:
            return convnn(part("convnn"), x, a, drawn)
        first = convnn(part("convnn"), x[..., :width], a, drawn)
        rest = {**a, "d_hidden": x.shape[2] - width}
        both = torch.cat([first, other(part(name), x[..., width:], rest)], dim=-1)
        return both @ w["pointwise_linear.weight"].T + w["pointwise_linear.bias"]

    return layer


def kvt(w, x, a, drawn=None):
    num_heads, width = a["num_heads"], x.shape[2] // a["num_heads"]
    joint = F.linear(x, w["qkv.weight"], w.get("qkv.bias"))
    query, key, value = (_heads(part, num_heads) for part in joint.chunk(3, dim=-1))
    scale = a.get("qk_scale") or width**-0.5
    scores = torch.einsum("bhid,bhjd->bhij", query, key) * scale
    least = scores.sort(dim=-1, descending=True).values[..., a["topk"] - 1, None]
    output = _softmax_attention(query, key, value, scale, scores >= least)
    return _merged(output) @ w["proj.weight"].T


def local(w, x, a, drawn=None):
    window, causal, n_tokens = a["window_size"], a.get("causal", False), x.shape[1]
    if "norm.weight" in w:
        x = F.layer_norm(x, x.shape[-1:], w["norm.weight"], w["norm.bias"])
    joint = x @ w["to_qkv.weight"].T
    query, key, value = (_heads(part, a["heads"]) for part in joint.chunk(3, dim=-1))
    scale = a["dim_head"] ** -0.5
    if a.get("qk_rmsnorm", False):
        query, key = F.normalize(query, dim=-1), F.normalize(key, dim=-1)
        query, key, scale = query * w["q_scale"], key * w["k_scale"], a.get("qk_scale", 8)
    # Zeros fill up the last window, and are attended.
    filling = (0, 0, 0, -n_tokens % window)
    query, key, value = (F.pad(y, filling) for y in (query, key, value))
    at = torch.arange(query.shape[2])
    base = a.get("xpos_scale_base") or window // 2 if a.get("use_xpos", False) else None
    query = _rotated(query, at + (0 if causal else window), base)
    key = _rotated(key, at, None if base is None else -base)
    gap, apart = at[:, None] - at, at[:, None] // window - at // window
    allowed = apart.abs() <= 1
    if a.get("exact_windowsize") in (None, True):
        allowed &= gap.abs() <= window
    if causal:
        allowed &= gap >= 0
    output = _softmax_attention(query, key, value, scale, allowed)[:, :, :n_tokens]
    if "to_v_gate.0.weight" in w:
        gates = F.linear(x, w["to_v_gate.0.weight"], w["to_v_gate.0.bias"]).sigmoid()
        output = output * gates.transpose(1, 2)[..., None]
    return _merged(output) @ w["to_out.weight"].T


def _rotated(x, at, base):
    """Rotary positions, faded by xPos with a base (swelled with a negative one)."""
    width = x.shape[-1]
    turned = torch.zeros_like(x)
    for pair in range(width // 2):
        angle = at * 10000 ** (-2 * pair / width)
        fading = (2 * pair + 0.4 * width) / (1.4 * width)
        size = 1 if base is None else fading ** (at / base)
        first, second = x[..., pair], x[..., pair + width // 2]
        turned[..., pair] = (first * angle.cos() - second * angle.sin()) * size
        turned[..., pair + width // 2] = (second * angle.cos() + first * angle.sin()) * size
    return turned


def sparse(w, x, a, drawn=None):
    names = (f"{part}_proj.weight" for part in "qkv")
    heads = [_heads(x @ w[name].T, a["num_heads"]) for name in names]
    at = torch.arange(x.shape[1])
    gap, context = (at[:, None] - at).abs(), a.get("local_attn_ctx")
    allowed = gap >= 0
    if a.get("attn_mode", "all") == "local":
        allowed = gap <= context // 2
    elif a.get("attn_mode", "all") == "strided":
        allowed = gap % context == 0
    scale = (x.shape[2] // a["num_heads"]) ** -0.5
    return _merged(_softmax_attention(*heads, scale, allowed)) @ w["out_proj.weight"].T


LAYERS = {
    "MultiHeadAttention": attention,
    "MultiHeadConvNNAttention": convnn,
    "MultiHeadConv1dAttention": conv1d,
    "MultiHeadBranchingConv": _branching(conv1d, "conv1d"),
    "MultiHeadBranchingAttention": _branching(attention, "attention"),
    "MultiHeadKvtAttention": kvt,
    "MultiHeadLocalAttention": local,
    "MultiHeadSparseAttention": sparse,
}


def weight_shapes(name, a):
    """Names and shapes of a layer's weights there."""
    dim = a.get("d_hidden", a.get("dim"))
    if name == "MultiHeadKvtAttention":
        shapes = {"qkv.weight": (3 * dim, dim), "proj.weight": (dim, dim)}
        return shapes | ({"qkv.bias": (3 * dim,)} if a.get("qkv_bias") else {})
    if name == "MultiHeadLocalAttention":
        inner, width = a["heads"] * a["dim_head"], a["dim_head"]
        shapes = {"to_qkv.weight": (3 * inner, dim), "to_out.weight": (dim, inner)}
        if a.get("prenorm"):
            shapes |= {"norm.weight": (dim,), "norm.bias": (dim,)}
        if a.get("qk_rmsnorm"):
            shapes |= {"q_scale": (width,), "k_scale": (width,)}
        if a.get("gate_values_per_head"):
            shapes |= {"to_v_gate.0.weight": (a["heads"], dim), "to_v_gate.0.bias": (a["heads"],)}
        return shapes
    if name == "MultiHeadSparseAttention":
        return {f"{part}_proj.weight": (dim, dim) for part in ("q", "k", "v", "out")}
    if name == "MultiHeadConv1dAttention":
        width = dim // a["num_heads"]
        shapes = {"conv.weight": (width, width, a["kernel_size"]), "conv.bias": (width,)}
        for part in ("W_x", "W_o"):
            shapes |= {f"{part}.weight": (dim, dim), f"{part}.bias": (dim,)}
        return shapes
    if name.startswith("MultiHeadBranching"):
        return _branching_shapes(name, a)
    projections = {f"W_{part}.weight": (dim, dim) for part in "qkvo"}
    return projections if name == "MultiHeadAttention" else projections | _slot_shapes(a)


def _slot_shapes(a):
    width, k = a["d_hidden"] // a["num_heads"], a["K"]
    more = width + bool(a.get("coordinate_encoding"))
    kind = a.get("convolution_type", "depthwise")
    if kind == "depthwise-separable":
        return {"conv.0.weight": (more, 1, k), "conv.1.weight": (width, more, 1)}
    return {"conv.weight": (width, more if kind == "standard" else 1, k)}


def _branching_shapes(name, a):
    dim = a["d_hidden"]
    width = int(a["branch_ratio"] * dim)
    shapes = {"pointwise_linear.weight": (dim, dim), "pointwise_linear.bias": (dim,)}
    other = "conv1d" if name == "MultiHeadBranchingConv" else "attention"
    rest = "MultiHeadConv1dAttention" if other == "conv1d" else "MultiHeadAttention"
    parts = (("convnn", "MultiHeadConvNNAttention", width), (other, rest, dim - width))
    for prefix, layer, size in parts:
        if size:
            inside = weight_shapes(layer, {**a, "d_hidden": size})
            shapes |= {f"{prefix}.{key}": shape for key, shape in inside.items()}
    return shapes


def random_weights(name, a, seed=0):
    """Weights in float64 that no initial one or zero can hide behind."""
    generator = torch.Generator().manual_seed(seed)
    return {
        key: torch.randn(shape, generator=generator, dtype=torch.float64)
        / max(1, math.prod(shape[1:])) ** 0.5
        for key, shape in weight_shapes(name, a).items()
    }
