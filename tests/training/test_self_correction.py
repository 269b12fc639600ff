"""Labels follow what a network predicted of its own rows before it learned wrong ones."""

import pytest
import torch

from nearwise.training import SelfCorrection, TrainingRows, predict_head, train_embedder
from nearwise.training.self_correction import FollowedPredictions
from tests.training.cases import N_CLASSES, blobs, quick, same_weights, small_network, weights_of

WRONG = 0.3


def mislabelled(n_rows=200):
    """Rows with a third of their labels wrong, which a wide network has room to learn."""
    generator = torch.Generator().manual_seed(1)
    rows = blobs(n_rows)
    other = (rows.labels + torch.randint(1, N_CLASSES, (n_rows,), generator=generator)) % N_CLASSES
    wrong = torch.rand(n_rows, generator=generator) < WRONG
    given = torch.where(wrong, other, rows.labels)
    even = torch.full((N_CLASSES, N_CLASSES), WRONG / (N_CLASSES - 1))
    likelihood = even.fill_diagonal_(1 - WRONG).T[given]
    labels = likelihood / likelihood.sum(1, keepdim=True)
    return TrainingRows(rows.x_num, labels), rows.labels, likelihood


def trained(rows, likelihood=None, checkpoint=None, progress=None, **settings):
    network = small_network(head=True, trunk="mlp", hidden=[256, 256], dropout=0.2)
    common = {"ce_weight": 1.0, "knn_weight": 0.0, "label_smoothing": 0.1}
    result = train_embedder(
        network,
        rows,
        None,
        quick(**common | settings),
        seed=0,
        checkpoint=checkpoint,
        progress=progress,
        correction=None if likelihood is None else SelfCorrection(likelihood),
    )
    return network, result


def test_wrong_labels_are_not_learned():
    rows, true, likelihood = mislabelled()
    right = {}
    for name, given in {"as given": None, "corrected": likelihood}.items():
        network, _ = trained(rows, given, epochs=100)
        right[name] = float((predict_head(network, rows).argmax(1) == true).float().mean())
    assert right["corrected"] > max(0.9, right["as given"])


def test_labels_are_powers_of_averages_times_likelihoods():
    likelihood = torch.tensor([[0.7, 0.3], [0.2, 0.8], [0.5, 0.1]])
    settings = SelfCorrection(likelihood, momentum=0.6, power=3.0)
    followed = FollowedPredictions(settings, 0.2, torch.device("cpu"))
    smoothed = [[0.82, 0.18], [0.58, 0.42], [0.26, 0.74]]  # of .9, .6 and .2
    followed.note(torch.tensor([0]), torch.tensor(smoothed[:1]).log())
    followed.note(torch.tensor([0, 1]), torch.tensor(smoothed[1:]).log())
    average = torch.tensor([[0.6 * 0.9 + 0.4 * 0.6, 0.6 * 0.1 + 0.4 * 0.4], [0.2, 0.8], [0.5, 0.5]])
    expected = average**3 * likelihood
    expected /= expected.sum(1, keepdim=True)
    torch.testing.assert_close(followed.labels(), expected)


def test_mixed_rows_are_not_noted(monkeypatch):
    rows, _, likelihood = mislabelled(60)
    noted, note = [], FollowedPredictions.note

    def spy(self, positions, logits):
        noted.append(len(positions))
        note(self, positions, logits)

    monkeypatch.setattr(FollowedPredictions, "note", spy)
    trained(rows, likelihood, epochs=8, mixup_alpha=0.2)
    assert set(noted) == {0, 30}  # half of the batches are mixed


def test_the_last_epoch_is_kept_also_beside_held_out_rows():
    rows, _, likelihood = mislabelled(60)
    network = small_network(head=True)
    others = blobs(40, 1, 1000)
    correction = SelfCorrection(likelihood)
    config = quick(ce_weight=1.0, lr=0.5)  # whose NLL rises
    result = train_embedder(network, rows, others, config, seed=0, correction=correction)
    nlls = [record["held_out_nll"] for record in result.history]
    assert (result.best_epoch, result.best_value) == (4, None)
    assert nlls[-1] > min(nlls)


def test_labels_stay_as_they_are_in_the_warm_up():
    rows, _, likelihood = mislabelled(60)
    plain, _ = trained(rows, epochs=2)
    corrected, _ = trained(rows, likelihood, epochs=2)
    first = trained(rows, epochs=6)[1].history
    later = trained(rows, likelihood, epochs=6)[1].history
    same = [a["train_loss"] == b["train_loss"] for a, b in zip(first, later, strict=True)]
    assert same == [True, False, False, False, False, False]
    assert not same_weights(weights_of(plain), weights_of(corrected))


@pytest.mark.filterwarnings("ignore:Training was interrupted")
def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(tmp_path):
    rows, _, likelihood = mislabelled(60)
    whole, _ = trained(rows, likelihood, epochs=8)

    def stop(record):
        if record["epoch"] == 5:
            raise KeyboardInterrupt

    trained(rows, likelihood, tmp_path / "run", stop, epochs=8)
    again, _ = trained(rows, likelihood, tmp_path / "run", epochs=8)
    assert same_weights(weights_of(again), weights_of(whole))
    with pytest.raises(ValueError, match="another"):
        trained(rows, likelihood.flip(0), tmp_path / "run", epochs=8)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"momentum": 1.0}, "momentum"),
        ({"power": 0.0}, "power"),
        ({"warmup": 1.5}, "warmup"),
        ({"likelihood": torch.zeros(4, 3)}, "possible in some class"),
        ({"likelihood": torch.full((4, 3), -1.0)}, "probabilities"),
        ({"likelihood": torch.full((4, 3), torch.nan)}, "probabilities"),
    ],
)
def test_settings_out_of_range_are_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        SelfCorrection(**{"likelihood": torch.ones(4, 3)} | settings)


def test_what_does_not_fit_the_run_is_refused():
    rows, _, likelihood = mislabelled(60)
    with pytest.raises(ValueError, match=r"has shape \(59, 3\), and must have \(60, 3\)"):
        trained(rows, likelihood[1:])
    with pytest.raises(ValueError, match="Lower mixup_probability"):
        trained(rows, likelihood, mixup_alpha=0.2, mixup_probability=1.0)
    with pytest.raises(ValueError, match="ce_weight"):
        trained(rows, likelihood, ce_weight=0.0, knn_weight=1.0)
