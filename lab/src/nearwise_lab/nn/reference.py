"""Layers with the weights and constructor arguments of published code, by class name."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from nearwise.names import did_you_mean
from nearwise_lab.nn.reference_layers import REFERENCE_LAYERS, SHORT_NAMES, ReferenceLayer, State


def load_reference_layer(
    name: str,
    kwargs: Mapping[str, Any],
    state_dict: Mapping[str, Any],
    *,
    legacy_layout: bool = False,
) -> nn.Module:
    """Build a layer from the class name, arguments and weights of published code.

    Parameters
    ----------
    name : str
        Such as "MultiHeadConvNNAttention", or its short name, "ConvNNAttention".
    kwargs : mapping
        Its constructor arguments, by their names there.
    state_dict : mapping
        Its weights, by their names there: tensors or arrays.
    legacy_layout : bool, default=False
        Whether to compute exactly what that code does, so that its checkpoints keep their
        accuracy: with several heads it mixes tokens and channels, sampled tokens may be their own
        neighbors twice, candidates are also sampled in evaluation, and zeros after the last
        token are attended. Otherwise the same weights without these.

    Returns
    -------
    layer : Module
        In evaluation mode.

    Raises
    ------
    ValueError
        If the name or an argument is not known, or weights are missing.

    Examples
    --------
    >>> import torch
    >>> weights = {f"W_{x}.weight": torch.eye(8) for x in "qkvo"}
    >>> layer = load_reference_layer("MultiHeadAttention", {"d_hidden": 8, "num_heads": 2}, weights)
    >>> layer(torch.ones(1, 3, 8)).shape
    torch.Size([1, 3, 8])
    """
    state = {key: torch.as_tensor(value) for key, value in state_dict.items()}
    with torch.random.fork_rng(devices=[]):  # the first weights are overwritten: draw for free
        layer = build_reference_layer(name, kwargs, legacy_layout=legacy_layout)
    if state:
        layer.to(next(iter(state.values())).dtype)
    load_weights(layer, reference_state(name, state), name)
    return layer.eval()


def build_reference_layer(
    name: str, kwargs: Mapping[str, Any], *, legacy_layout: bool = False
) -> nn.Module:
    """Build a layer from the class name and arguments of published code, newly initialized."""
    known = known_layer(name)
    if unknown := sorted(set(kwargs) - set(known.arguments)):
        raise ValueError(
            f"{name} has no argument {unknown[0]!r}. It has {', '.join(known.arguments)}."
        )
    missing = [key for key, value in known.arguments.items() if value is ... and key not in kwargs]
    if missing:
        raise ValueError(f"{name} needs the arguments {', '.join(missing)}.")
    return known.build(kwargs, legacy_layout)


def reference_state(name: str, state: State) -> State:
    """Rename the weights of a published layer to this library's names.

    Raises ValueError if one is missing.
    """
    try:
        return known_layer(name).rename(dict(state))
    except KeyError as error:
        found = ", ".join(sorted(state)) or "none"
        raise ValueError(
            f"The weights do not fit {name}: {error.args[0]} is missing. Found: {found}. Give the "
            "whole state dict of one layer, by its names there."
        ) from None


def load_weights(module: nn.Module, state: State, name: str) -> None:
    """Load weights; a missing or superfluous one raises an error in one sentence."""
    shapes, found = (
        {key: tuple(value.shape) for key, value in weights.items()}
        for weights in (module.state_dict(), state)
    )
    if wrong := sorted(key for key in shapes.keys() | found if shapes.get(key) != found.get(key)):
        key = wrong[0]
        raise ValueError(
            f"The weights do not fit {name}: {key} should be {shapes.get(key, 'absent')} and is "
            f"{found.get(key, 'absent')} (and {len(wrong) - 1} others). Give the arguments it was "
            "trained with."
        )
    module.load_state_dict(state)


def known_layer(name: str) -> ReferenceLayer:
    """Find a layer by its class name or short name; ValueError suggests the nearest."""
    short = name.removeprefix("natten.")
    known = REFERENCE_LAYERS.get(SHORT_NAMES.get(short, short))
    if known is None:
        hint = did_you_mean(name, [*REFERENCE_LAYERS, *SHORT_NAMES])
        raise ValueError(
            f"Layer {name!r} is not known.{hint} There are {', '.join(REFERENCE_LAYERS)}."
        )
    return known
