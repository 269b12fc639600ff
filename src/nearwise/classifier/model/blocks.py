"""Rows are predicted a block at a time: memory does not grow with how many are asked at once."""

from collections.abc import Iterator

import torch
from torch import Tensor

from nearwise.classifier.fit.embedding import AnyRows

BLOCK = 16_384  # rows; a whole number of the chunks that heads take


def row_blocks(rows: Tensor) -> tuple[Tensor, ...]:
    """Split positions (n,) into blocks, in their order; none for no rows."""
    return rows.split(BLOCK) if len(rows) else ()


def view_blocks(views: list[AnyRows]) -> Iterator[list[AnyRows]]:
    """Give rows in all their views block by block, in their order."""
    n_rows = len(views[0])
    if n_rows <= BLOCK:
        yield views
        return
    for block in row_blocks(torch.arange(n_rows)):
        yield [rows.take(block.numpy()) for rows in views]
