"""What a query of a probe costs."""

from nearwise_lab.probing.cost import probe_flops

from nearwise.probes import TransformerProbe
from tests.probes.test_transformer import SMALL, tokens


def test_flops_of_a_query_are_counted():
    X, y = tokens(40)
    n, d = 4, 16  # tokens, width
    probe = TransformerProbe(**{**SMALL, "epochs": 1, "lr": 1e-3}).fit(X, y)
    layer = n * d * (3 * d + d + 2 * d + 2 * d) + 2 * n * n * d
    assert probe_flops(probe, X) == 2 * (n * 3 * d + layer + d * 4)
