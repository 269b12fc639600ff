"""The study's embedders."""

import torch
from nearwise_lab.experiments.study.model import PixelMLP, TabularMLP

NUMBERS = torch.randn(6, 3)


def test_study_mlp_is_as_described():
    embedder = TabularMLP(3, dim=16)
    widths = [m.weight.shape for m in embedder.modules() if isinstance(m, torch.nn.Linear)]
    rates = [m.p for m in embedder.modules() if isinstance(m, torch.nn.Dropout)]
    norms = [m for m in embedder.modules() if isinstance(m, torch.nn.BatchNorm1d)]
    assert widths == [(256, 3), (256, 256), (16, 256)]
    assert rates == [0.2, 0.1]
    assert len(norms) == 2
    torch.testing.assert_close(embedder(NUMBERS).norm(dim=1), torch.ones(6))


def test_mixing_a_row_with_itself_changes_nothing():
    images = torch.randint(0, 256, (6, 1, 4, 4))
    for embedder, rows in ((TabularMLP(3, 4), NUMBERS), (PixelMLP(16, 4), images)):
        same = (torch.arange(6), torch.full((6, 1), 0.7))
        mixed = embedder.eval().embed_mixed(rows, None, *same)
        torch.testing.assert_close(embedder.key(mixed), embedder(rows))
