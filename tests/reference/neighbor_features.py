"""The features that the pretrained head is given, in plain tensor sums."""

import torch

from nearwise.nn import NeighborSet


def features(space: NeighborSet) -> tuple[torch.Tensor, torch.Tensor]:
    """Of neighbors (B, K, 17) and of queries (B, 22)."""
    there = (space.log_weight > -torch.inf).float()
    mean = (space.distances * there).sum(1, keepdim=True) / there.sum(1, keepdim=True).clamp_min(1)
    relative = (space.distances / mean.clamp_min(1e-6) - 1).clamp(-1, 3)
    log_weight = space.log_weight.clamp_min(-1e4)
    votes = []
    for sharpness in (0.0, 4.0, 12.0):
        share = torch.softmax(log_weight - sharpness * relative, dim=1)
        votes.append(torch.zeros_like(space.log_prior).scatter_add_(1, space.labels, share))
    plain, near, nearest = (vote.gather(1, space.labels) for vote in votes)
    prior = space.log_prior.gather(1, space.labels).clamp_min(-6)
    ranks = torch.arange(1, space.labels.shape[1] + 1, dtype=torch.float32)
    far = torch.log(space.distances + 0.01)
    base = space.summary[:, 10, None].expand_as(far)
    opinion = space.opinion.clamp_min(-6)
    of_neighbors = [
        relative,
        (relative - relative[:, :1]) / 2,
        far / 2,
        (torch.log(ranks) / 3).expand_as(far),
        2 * plain - 1,
        2 * near - 1,
        2 * nearest - 1,
        2 * space.reliability - 1,
        prior / 3,
        (torch.log(near + 0.01) - prior) / 3,
        far - torch.log(space.own_distance + 0.01),
        (opinion / 3 + 1) * base,
        (opinion - prior) / 3 * base,
        (space.own_opinion.clamp_min(-6) / 3 + 1) * base,
        (2 * space.likeness - 1) * base,
        base,
        space.summary[:, -1, None].expand_as(far),
    ]
    share = torch.softmax(log_weight, dim=1)
    of_queries = [
        torch.log(mean + 0.01) / 2,
        far[:, :1] / 2,
        (share * relative**2).sum(1, keepdim=True).sqrt(),
        torch.special.entr(votes[1]).sum(1, keepdim=True),
        votes[1].amax(1, keepdim=True),
        (share * space.reliability).sum(1, keepdim=True),
        space.summary,
    ]
    return torch.stack(of_neighbors, dim=2), torch.cat(of_queries, dim=1)
