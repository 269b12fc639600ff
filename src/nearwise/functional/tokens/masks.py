"""Which masks attention takes, and what it says of the others."""

from typing import Any, Literal

import torch
from torch import Tensor

Meaning = Literal["may attend", "leave out"]


def check_mask(name: str, mask: Any, true_means: Meaning, *, takes_floats: bool = True) -> None:
    """Refuse a mask whose numbers would be added to the scores, or inverted bit by bit.

    Parameters
    ----------
    name : str
        The argument, for the message.
    mask : Tensor or None
    true_means : {"may attend", "leave out"}
        What True means in it.
    takes_floats : bool, default=True
        Whether floating numbers, which are added to the scores, are taken too.

    Raises
    ------
    ValueError
        If the mask is something other than a boolean or floating tensor.
    """
    if mask is None:
        return
    is_tensor = isinstance(mask, Tensor)
    if is_tensor and (mask.dtype == torch.bool or (takes_floats and mask.is_floating_point())):
        return
    kinds = f"boolean (True: {true_means})"
    kinds += " or floating (added to the scores)" if takes_floats else ""
    seen = mask.dtype if is_tensor else f"a {type(mask).__name__}"
    marks_keys, marks_holes = ("== 1", "== 0") if true_means == "may attend" else ("== 0", "== 1")
    raise ValueError(
        f"{name} must be a tensor, {kinds}; got {seen}. Where 1 marks what may be attended, as in "
        f"the attention_mask of a tokenizer, pass {name} {marks_keys}; where 1 marks what is left "
        f"out, pass {name} {marks_holes}."
    )


def checked_padding(mask: Tensor, batch: int, n_keys: int) -> Tensor:
    """Expand a key padding mask to (B, M), or say why it cannot be."""
    check_mask("key_padding_mask", mask, "leave out", takes_floats=False)
    if tuple(mask.shape) not in ((batch, n_keys), (n_keys,)):
        raise ValueError(
            f"key_padding_mask must be boolean (True: leave out) of shape ({batch}, {n_keys}); got "
            f"shape {tuple(mask.shape)}."
        )
    return mask.expand(batch, n_keys)
