"""Compiled loops of the neighbor head on a CPU: attention shared out, votes, and gradients.

They release the interpreter lock and start no threads.
"""

import numpy as np

from nearwise.functional.kernels import inlined, reordered

_F = np.float32


@reordered
def vote_rows(  # type: ignore[no-untyped-def]
    logits, labels, certainty, ends, null, n_known, shares, alpha, votes, empty
):
    """Share attention out among neighbors and a null, and add it up by class.

    Of B queries with K neighbors in S spaces, space s up to ``ends[s]`` of the K: `logits`
    (B, K, H), `labels` (B, K), `certainty` (B, K) or (B, 0), and `null` (B, S), the null's mass
    over that of the neighbors of a space. Written are the neighbors' `shares` (B, K, H) in each
    head, their attention `alpha` (B, K), and into zeros `votes` (B, G, C) and the null's attention
    `empty` (B, G): G = S where each space has a null of its own, 1 where one stands beside all.
    """
    n_spaces, n_heads, n_groups = null.shape[1], logits.shape[2], votes.shape[1]
    for row in range(labels.shape[0]):
        start = 0
        for group in range(n_groups):
            first, last = (0, n_spaces) if n_groups == 1 else (group, group + 1)
            stop, weight = ends[last - 1], alpha[row]
            weight[start:stop] = 0
            for h in range(n_heads):
                top, total = _F(-np.inf), _F(0)
                for j in range(start, stop):
                    top = max(top, logits[row, j, h])
                for j in range(start, stop):
                    raised = _F(0) if top == -np.inf else np.exp(logits[row, j, h] - top)
                    shares[row, j, h] = raised
                    total += raised
                if total == 0:  # no neighbor may be asked
                    empty[row, group] = 1
                    continue
                for j in range(start, stop):
                    shares[row, j, h] /= total
                beside = _beside(shares[row, :, h], start, ends[first:last], null[row, first:last])
                empty[row, group] += beside / (1 + beside) / n_heads
                for j in range(start, stop):
                    weight[j] += shares[row, j, h] / (1 + beside) / n_heads
            vote = votes[row, group]
            for j in range(start, stop):
                sure = weight[j]
                if certainty.shape[1] > 0:
                    doubt = sure * (1 - certainty[row, j]) / max(n_known - 1, 1)
                    vote[:n_known] += doubt
                    sure = sure * certainty[row, j] - doubt
                vote[labels[row, j]] += sure
            start = stop


@inlined
def _beside(share, start, ends, null):  # type: ignore[no-untyped-def]
    """Mass of the null over that of the neighbors it stands beside, in one head."""
    beside = _F(0)
    for s in range(ends.shape[0]):
        for j in range(start, ends[s]):
            beside += share[j] * null[s]
        start = ends[s]
    return beside / _F(ends.shape[0])


@reordered
def vote_gradients(  # type: ignore[no-untyped-def]
    labels, certainty, ends, null, n_known, shares, d_votes, d_empty, d_null, d_logits
):
    """Write `d_logits` and add to `d_null` the gradients of what `vote_rows` wrote.

    `d_votes` (B, G, C) and `d_empty` (B, G) are those of the votes and of the null's attention.
    """
    (_, k, n_heads), n_spaces, n_groups = shares.shape, null.shape[1], d_votes.shape[1]
    gain = np.empty(k, dtype=null.dtype)
    for row in range(labels.shape[0]):
        start = 0
        for group in range(n_groups):
            first, last = (0, n_spaces) if n_groups == 1 else (group, group + 1)
            stop, slope = ends[last - 1], d_votes[row, group]
            everyone = slope[:n_known].sum()
            for j in range(start, stop):
                gain[j] = slope[labels[row, j]]
                if certainty.shape[1] > 0:
                    doubt = (1 - certainty[row, j]) / max(n_known - 1, 1)
                    gain[j] = gain[j] * (certainty[row, j] - doubt) + everyone * doubt
            for h in range(n_heads):
                share, score = shares[row, :, h], d_logits[row, :, h]
                by = 1 / (1 + _beside(share, start, ends[first:last], null[row, first:last]))
                mean = _F(0)
                for j in range(start, stop):
                    mean += share[j] * gain[j]
                of_null = (d_empty[row, group] - mean) * by * by / (n_heads * (last - first))
                at, mean = start, _F(0)
                for s in range(first, last):
                    for j in range(at, ends[s]):
                        d_null[row, s] += share[j] * of_null
                        score[j] = gain[j] * by / n_heads + of_null * null[row, s]
                        mean += share[j] * score[j]
                    at = ends[s]
                for j in range(start, stop):
                    score[j] = share[j] * (score[j] - mean)
            start = stop
