"""The k-NN evaluation that DINO publishes, written from its description.

Caron et al., "Emerging Properties in Self-Supervised Vision Transformers", ICCV 2021: features of
unit length, the k = 20 training rows of largest cosine similarity, a vote of
``exp(similarity / 0.07)`` each; the test rows in 100 parts, each part against all training rows.
"""

import numpy as np
import torch
import torch.nn.functional as F


def dino_votes(X, codes, query, *, n_classes, n_neighbors=20, temperature=0.07, n_parts=100):
    """Sums of votes (n, n_classes) of query rows; not divided by their total."""
    bank = F.normalize(torch.from_numpy(X), dim=1).T
    labels = torch.from_numpy(np.asarray(codes, dtype=np.int64))
    query = F.normalize(torch.from_numpy(query), dim=1)
    found = []
    for part in query.chunk(n_parts):
        similarity, nearest = torch.mm(part, bank).topk(n_neighbors, dim=1)
        one_hot = torch.zeros(len(part), n_neighbors, n_classes)
        one_hot.scatter_(2, labels[nearest][..., None], 1.0)
        found.append((one_hot * (similarity / temperature).exp()[..., None]).sum(dim=1))
    return torch.cat(found).numpy()
