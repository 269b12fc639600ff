"""k-NN attention for the models of Hugging Face transformers, kept in their configurations."""

import re
from collections.abc import Callable, Sequence
from functools import cache, partial, wraps
from typing import Any, get_args

import torch
from torch import Tensor, nn

from nearwise.functional.tokens import attend
from nearwise.functional.tokens.problem import TokenMetric, check_n_neighbors

_NAME = re.compile(r"nearwise_knn_(matmul|cosine|euclidean)_(per_layer_)?(\d+(?:_\d+)*)")
_KEY = "_attn_implementation"  # of a configuration; transformers reads it, but does not write it
# Where configurations say how many layers there are; a model with a decoder has up to two of them.
_DEPTHS = (
    *("num_hidden_layers", "encoder_layers", "decoder_layers", "num_decoder_layers"),
    *("encoder_num_hidden_layers", "decoder_num_hidden_layers"),
)
# What some models pass on that changes scores or weights, and k-NN attention does not support.
_UNKNOWN = ("head_mask", "softcap", "s_aux", "sinks", "block_indices", "cache")


def transformers_attention(
    n_neighbors: int | Sequence[int] = 9, *, metric: TokenMetric = "matmul"
) -> str:
    """Register k-NN attention with transformers and return its name.

    A model that has it writes the name into its ``config.json``, and gives the weights of all keys,
    (batch, heads, N, M), where it is called with ``output_attentions=True``.

    Parameters
    ----------
    n_neighbors : int or sequence of int, default=9
        Keys a query attends to, in each head; all where there are fewer. In a sequence, entry i
        is for layer i, of the encoder and of the decoder where there are both; it has as many
        entries as the deeper of them has layers.
    metric : {"matmul", "cosine", "euclidean"}, default="matmul"

    Returns
    -------
    name : str
        For ``attn_implementation=`` of any model that uses transformers' attention interface.

    Raises
    ------
    ImportError
        Without transformers.
    ValueError
        If `n_neighbors` is not positive, or the metric is not known. A model raises it when it is
        made, if it does not use the interface; when it runs, if `n_neighbors` does not have one
        entry per layer, its layers cannot be distinguished (ALBERT shares them), or its attention
        has more to it (sinks, soft caps).

    Examples
    --------
    >>> import torch
    >>> from transformers import ViTConfig, ViTModel
    >>> config = ViTConfig(image_size=32, patch_size=8, hidden_size=24, num_hidden_layers=2,
    ...                    num_attention_heads=3, intermediate_size=48)
    >>> name = transformers_attention([9, 5])
    >>> model = ViTModel._from_config(config, attn_implementation=name)
    >>> model(torch.randn(1, 3, 32, 32)).last_hidden_state.shape
    torch.Size([1, 17, 24])
    """
    per_layer = isinstance(n_neighbors, Sequence)
    counts = tuple(n_neighbors) if isinstance(n_neighbors, Sequence) else (n_neighbors,)
    if not counts:
        raise ValueError("n_neighbors is empty. Give one number per layer, or one for all.")
    for count in counts:
        check_n_neighbors(count)
    if metric not in get_args(TokenMetric):
        raise ValueError(f"metric={metric!r} is not one of {', '.join(get_args(TokenMetric))}.")
    restore_transformers_attention()
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    name = f"nearwise_knn_{metric}_{'per_layer_' * per_layer}{'_'.join(map(str, counts))}"
    kept = counts if per_layer else counts[0]
    AttentionInterface.register(name, partial(_forward, n_neighbors=kept, metric=metric))
    # The masks of scaled dot-product attention: boolean, True where a query may attend.
    AttentionMaskInterface.register(name, sdpa_mask)
    return name


@cache
def restore_transformers_attention() -> None:
    """Let ``from_pretrained`` give saved models the k-NN attention that they were saved with.

    Once per process; `transformers_attention` does it too. In a process without it transformers
    refuses to load such a model, as it lacks the attention that ``config.json`` names.
    Pickled models need no call.

    Raises
    ------
    ImportError
        Without transformers.
    """
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            'Models of transformers need the extra "vision": pip install nearwise[vision]'
        ) from error
    # transformers leaves the attention out of what it saves and has no hook for it.
    config_class: Any = transformers.PretrainedConfig
    model_class: Any = transformers.PreTrainedModel
    to_dict, post_init = config_class.to_dict, model_class.post_init
    from_dict, reduce = config_class.from_dict.__func__, model_class.__reduce_ex__

    @wraps(to_dict)
    def with_attention(self: Any) -> dict[str, Any]:
        kept = _kept(self)
        return to_dict(self) | ({} if kept is None else {_KEY: kept})

    @wraps(from_dict)
    def restored(cls: Any, config_dict: dict[str, Any], **options: Any) -> Any:
        saved, chosen = config_dict.get(_KEY), options.get("attn_implementation")
        both = saved is not None and chosen is not None
        made = from_dict(cls, config_dict | {_KEY: chosen} if both else config_dict, **options)
        config = made[0] if options.get("return_unused_kwargs") else made
        if both:  # a dictionary may name some parts alone; the others keep what was saved
            config._attn_implementation = saved
            config._attn_implementation = chosen
        _register(_kept(config))
        return made

    @wraps(reduce)
    def pickled(self: Any, protocol: Any) -> Any:
        make, args, *state = reduce(self, protocol)
        kept = _kept(self.config)
        return (make, args, *state) if kept is None else (_unpickled, (kept, make, *args), *state)

    @wraps(post_init)
    def numbered(self: Any) -> None:
        post_init(self)
        _check_interface(self)
        _number_layers(self)

    config_class.to_dict, config_class.from_dict = with_attention, classmethod(restored)
    model_class.post_init, model_class.__reduce_ex__ = numbered, pickled


def _kept(config: Any) -> str | dict[str, Any] | None:
    """Name of the k-NN attention of a configuration; a dictionary where its parts differ."""
    name = getattr(config, _KEY, None)
    own = name if name and _NAME.fullmatch(name) else None
    configs = {key: getattr(config, key, None) for key in config.sub_configs}
    parts = {key: _kept(part) for key, part in configs.items() if part is not None}
    # "" is transformers' key for the model itself, beside its parts.
    return own if all(part == own for part in parts.values()) else {"": own, **parts}


def _register(kept: str | dict[str, Any] | None) -> None:
    """Register the k-NN attention that `_kept` found in a configuration."""
    if isinstance(kept, dict):
        for part in kept.values():
            _register(part)
    elif found := _NAME.fullmatch(kept or ""):
        metric: Any = found[1]
        n_neighbors = [int(count) for count in found[3].split("_")]
        transformers_attention(n_neighbors if found[2] else n_neighbors[0], metric=metric)


def _unpickled(kept: str | dict[str, Any], make: Callable[..., Any], *args: Any) -> Any:
    """Make a model in a process that may not have registered its attention yet."""
    _register(kept)
    return make(*args)


def _check_interface(model: Any) -> None:
    """Refuse a model that would attend to all keys, whatever attention it is given."""
    if _kept(model.config) is not None and not model._can_set_attn_implementation():
        raise ValueError(
            f"{type(model).__name__} does not use transformers' attention interface, so that it "
            "cannot have k-NN attention. Take another model or a newer transformers, or leave "
            "attn_implementation out."
        )


def _depths(config: Any) -> list[int]:
    """Numbers of layers that a configuration names; none if it is not one."""
    found = (getattr(config, key, None) for key in _DEPTHS)
    return [depth for depth in found if isinstance(depth, int)]


def _number_layers(model: nn.Module) -> None:
    """Give modules with a configuration their layer index and the number of layers."""
    module: Any
    for stack in model.modules():
        layers = list(stack) if isinstance(stack, nn.ModuleList) else []
        for i, layer in enumerate(layers):
            for module in layer.modules():
                if len(layers) in _depths(getattr(module, "config", None)):
                    module.nearwise_layer = i
    depths = _depths(model.config)
    for module in model.modules():
        # The decoder of T5 has a copy of the configuration, without the depth of the encoder.
        if depths and type(getattr(module, "config", None)) is type(model.config):
            module.nearwise_n_layers = max(depths)


def _of_layer(n_neighbors: int | tuple[int, ...], module: nn.Module) -> int:
    """Neighbors in the layer that an attention module is of."""
    if isinstance(n_neighbors, int):
        return n_neighbors
    n_layers = getattr(module, "nearwise_n_layers", None)
    if n_layers is None:  # of a model from before the first call, or a layer by itself
        n_layers = max(_depths(getattr(module, "config", None)), default=None)
    layer = getattr(module, "layer_idx", None)
    layer = getattr(module, "nearwise_layer", None) if layer is None else layer
    if n_layers is None or layer is None or layer >= n_layers:
        raise ValueError(
            f"n_neighbors has one entry per layer, but {type(module).__name__} has no layer index: "
            "its model shares one among all (as ALBERT), or was made before "
            "transformers_attention was called. Give one n_neighbors for all layers, or make the "
            "model after that call."
        )
    if n_layers != len(n_neighbors):
        raise ValueError(
            f"n_neighbors has {len(n_neighbors)} entries, but the model has {n_layers} layers. "
            "Give one entry per layer, or one number for all."
        )
    return n_neighbors[layer]


def _forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    *,
    n_neighbors: int | tuple[int, ...],
    metric: TokenMetric,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend (B, H, N, D) as transformers expects it: (B, N, H, D), and weights (B, H, N, M)."""
    for name in _UNKNOWN:
        if options.get(name) is not None:
            raise ValueError(f"k-NN attention has no {name}, which {type(module).__name__} needs.")
    n_queries, n_keys = query.shape[2], key.shape[2]
    groups = query.shape[1] // key.shape[1]
    if groups > 1:  # several query heads share a key head
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
    causal = causal and attention_mask is None and 1 < n_queries <= n_keys
    if causal:  # after the queries a cache of fixed size is still empty
        key, value = key[:, :, :n_queries], value[:, :, :n_queries]
    found = attend(
        query,
        key,
        value,
        _of_layer(n_neighbors, module),
        metric=metric,
        scale=scaling if metric == "matmul" else None,
        attn_mask=_mask(attention_mask, position_bias, key.shape[2]),
        is_causal=causal,
        dropout_p=dropout,
    )
    weights = found.dense_weights(n_keys) if _wants_weights(options) else None
    return found.output.transpose(1, 2).contiguous(), weights


def _mask(mask: Tensor | None, bias: Tensor | None, n_keys: int) -> Tensor | None:
    """Mask and position bias in one."""
    mask, bias = (None if x is None else x[..., :n_keys] for x in (mask, bias))
    if mask is None or bias is None:
        return bias if mask is None else mask
    return bias.masked_fill(~mask, -float("inf")) if mask.dtype == torch.bool else bias + mask


def _wants_weights(options: dict[str, Any]) -> bool:
    """Whether the model that runs was called with ``output_attentions=True``."""
    if options.get("output_attentions"):
        return True
    try:  # some models, as GPT-2, do not pass it on; transformers then collects what layers return
        from transformers.utils.output_capturing import _active_collector
    except ImportError:  # before 5.2
        return False
    return any("attentions" in key for key in _active_collector.get() or ())
