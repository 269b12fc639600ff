"""Attention over a ranked list, with a null slot for answers that are not in it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

N_ITEM_FEATURES = 6
N_LIST_FEATURES = 6


def describe_lists(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Describe ranked lists of scores (n, K), descending, in units of their spread over all lists.

    Returns (n, K, 6) of the items: score, gaps to the best, the next and the mean, log rank, share
    of a softmax; and (n, 6) of the lists: best, mean and worst score, spread, gap of the first two,
    entropy of a softmax.
    """
    n, k = scores.shape
    mean = scores.mean(1, keepdim=True)
    share = torch.softmax(2 * scores, dim=1)
    following = F.pad(scores[:, 1:], (0, 1)) if k > 1 else scores.clone()
    following[:, -1] = scores[:, -1]
    ranks = torch.log(torch.arange(1, k + 1, dtype=scores.dtype, device=scores.device)) / 3
    items = [
        scores,
        scores - scores[:, :1],
        scores - following,
        scores - mean,
        ranks.expand(n, k),
        share,
    ]
    lists = [
        scores[:, 0],
        mean[:, 0],
        scores[:, -1],
        scores.std(1, unbiased=False),
        scores[:, 0] - following[:, 0],
        torch.special.entr(share).sum(1),
    ]
    return torch.stack(items, dim=2), torch.stack(lists, dim=1)


class RankAttention(nn.Module):
    """Probabilities of the rank of the first relevant item, and that none is relevant.

    A softmax over the items of a list and one null slot: each item's logit comes from its own
    features (`n_extra` more than `describe_lists` gives) and those of the list, the null's from the
    list. It starts at even shares.
    """

    def __init__(self, n_extra: int = 0, hidden: int = 32) -> None:
        super().__init__()
        self.config = {"n_extra": n_extra, "hidden": hidden}
        width = N_ITEM_FEATURES + n_extra
        self.item = nn.Linear(width + N_LIST_FEATURES, hidden)
        self.score = nn.Linear(hidden, 1)
        self.whole = nn.Linear(N_LIST_FEATURES + n_extra, hidden)
        self.null = nn.Linear(hidden, 1)
        for layer in (self.score, self.null):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, scores: Tensor, extra: Tensor | None = None) -> Tensor:
        """Log-probabilities (n, K + 1) of each rank, the null last; `extra` is (n, K, n_extra)."""
        items, lists = describe_lists(scores)
        whole = lists
        if extra is not None:
            items = torch.cat([items, extra], dim=2)
            whole = torch.cat([lists, extra.mean(1)], dim=1)
        around = lists[:, None].expand(-1, items.shape[1], -1)
        logits = self.score(F.gelu(self.item(torch.cat([items, around], dim=2))))[:, :, 0]
        null = self.null(F.gelu(self.whole(whole)))
        return torch.log_softmax(torch.cat([logits, null], dim=1), dim=1)
