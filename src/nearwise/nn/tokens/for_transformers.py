"""k-NN attention for Hugging Face transformers models, stored in their configurations."""

import re
from collections.abc import Callable, Sequence
from functools import cache, partial, wraps
from typing import Any, get_args

import torch
from torch import Tensor, nn

from nearwise.functional.tokens import attend
from nearwise.functional.tokens.problem import TokenMetric, check_n_neighbors

_NAME = re.compile(r"nearwise_knn_(matmul|cosine|euclidean)_(per_layer_)?(\d+(?:_\d+)*)")
_KEY = "_attn_implementation"  # configuration key that transformers reads, but does not write
# Configuration keys with a number of layers; a model with a decoder has up to two of them.
_DEPTHS = (
    *("num_hidden_layers", "encoder_layers", "decoder_layers", "num_decoder_layers"),
    *("encoder_num_hidden_layers", "decoder_num_hidden_layers"),
)
# Arguments of some models that change scores or weights; k-NN attention does not support them.
_UNKNOWN = ("head_mask", "softcap", "s_aux", "sinks", "block_indices", "cache")


def transformers_attention(
    n_neighbors: int | Sequence[int] = 9, *, metric: TokenMetric = "matmul"
) -> str:
    """Register k-NN attention with transformers and return its name.

    A model with this attention writes the name into its ``config.json``, and returns the weights of
    all keys, (batch, heads, N, M), if called with ``output_attentions=True``.

    Parameters
    ----------
    n_neighbors : int or sequence of int, default=9
        Number of attended keys per query and head; all if there are fewer. Entry i of a sequence
        is for layer i, of both encoder and decoder; it needs as many entries as the deeper of
        them has layers.
    metric : {"matmul", "cosine", "euclidean"}, default="matmul"

    Returns
    -------
    name : str
        Name for ``attn_implementation=`` of any model with transformers' attention interface.

    Raises
    ------
    ImportError
        If transformers is not installed.
    ValueError
        If `n_neighbors` is not positive, or the metric is unknown. The constructor of a model
        raises it if the model does not use the interface; its forward pass if `n_neighbors` does
        not have one entry per layer, layers cannot be distinguished (ALBERT shares them), or the
        attention has unsupported parts (sinks, soft caps).

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
    # Masks as in scaled dot-product attention: boolean, True where a query may attend.
    AttentionMaskInterface.register(name, sdpa_mask)
    return name


@cache
def restore_transformers_attention() -> None:
    """Enable ``from_pretrained`` to restore the k-NN attention of saved models.

    Call it once per process; `transformers_attention` includes it. Otherwise transformers cannot
    load such a model, since the attention in ``config.json`` is unknown.
    Pickled models need no call.

    Raises
    ------
    ImportError
        If transformers is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            'Models of transformers need the extra "vision": pip install nearwise[vision]'
        ) from error
    # transformers does not save the attention and has no hook for it.
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
        if both:  # a dictionary may name only some parts; the others keep the saved attention
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
    """Return the k-NN attention of a configuration; a dictionary if its parts differ."""
    name = getattr(config, _KEY, None)
    own = name if name and _NAME.fullmatch(name) else None
    configs = {key: getattr(config, key, None) for key in config.sub_configs}
    parts = {key: _kept(part) for key, part in configs.items() if part is not None}
    # "" is transformers' key for the model itself, beside its parts.
    return own if all(part == own for part in parts.values()) else {"": own, **parts}


def _register(kept: str | dict[str, Any] | None) -> None:
    """Register the k-NN attention returned by `_kept`."""
    if isinstance(kept, dict):
        for part in kept.values():
            _register(part)
    elif found := _NAME.fullmatch(kept or ""):
        metric: Any = found[1]
        n_neighbors = [int(count) for count in found[3].split("_")]
        transformers_attention(n_neighbors if found[2] else n_neighbors[0], metric=metric)


def _unpickled(kept: str | dict[str, Any], make: Callable[..., Any], *args: Any) -> Any:
    """Register the attention of a pickled model, and make the model."""
    _register(kept)
    return make(*args)


def _check_interface(model: Any) -> None:
    """Raise ValueError for a model that ignores the attention and would attend to all keys."""
    if _kept(model.config) is not None and not model._can_set_attn_implementation():
        raise ValueError(
            f"{type(model).__name__} does not use transformers' attention interface, so that it "
            "cannot have k-NN attention. Take another model or a newer transformers, or leave "
            "attn_implementation out."
        )


def _depths(config: Any) -> list[int]:
    """Return the numbers of layers in a configuration; empty if it is not one."""
    found = (getattr(config, key, None) for key in _DEPTHS)
    return [depth for depth in found if isinstance(depth, int)]


def _number_layers(model: nn.Module) -> None:
    """Set layer index and number of layers on modules with a configuration."""
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
    """Return the number of neighbors in the layer of an attention module."""
    if isinstance(n_neighbors, int):
        return n_neighbors
    n_layers = getattr(module, "nearwise_n_layers", None)
    if n_layers is None:  # model made before the first call, or a single layer
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
    """Attend (B, H, N, D); return (B, N, H, D) and weights (B, H, N, M) for transformers."""
    for name in _UNKNOWN:
        if options.get(name) is not None:
            raise ValueError(f"k-NN attention has no {name}, which {type(module).__name__} needs.")
    n_queries, n_keys = query.shape[2], key.shape[2]
    groups = query.shape[1] // key.shape[1]
    if groups > 1:  # several query heads share a key head
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
    causal = causal and attention_mask is None and 1 < n_queries <= n_keys
    if causal:  # the rest of a cache of fixed size is still empty
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
    """Merge mask and position bias."""
    mask, bias = (None if x is None else x[..., :n_keys] for x in (mask, bias))
    if mask is None or bias is None:
        return bias if mask is None else mask
    return bias.masked_fill(~mask, -float("inf")) if mask.dtype == torch.bool else bias + mask


def _wants_weights(options: dict[str, Any]) -> bool:
    """Whether the running model was called with ``output_attentions=True``."""
    if options.get("output_attentions"):
        return True
    try:  # GPT-2 and others do not pass it on; transformers then collects the layers' results
        from transformers.utils.output_capturing import _active_collector
    except ImportError:  # before 5.2
        return False
    return any("attentions" in key for key in _active_collector.get() or ())
