"""The experiment "weights": other weightings of the same neighbors, and nothing else."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from nearwise_lab.experiments.study import weightings
from nearwise_lab.experiments.study.weightings import (
    WEIGHTINGS,
    Exchange,
    View,
    base_alone,
    own_weights,
    weigh,
)

from nearwise.data import Dataset
from nearwise.estimators.noise.noisy_labels import NoisyLabels
from nearwise.estimators.noise.transition import known_transition
from nearwise.nn import NeighborSet, shared_head
from nearwise.nn.neighbor_set import N_SUMMARY

C, K, WIDTH, N_MEMORY = 3, 12, 6, 80


def neighbors(distances, labels):
    n, nothing = len(labels), torch.zeros(labels.shape)
    facts = (torch.ones(labels.shape), nothing + 0.7, nothing, nothing, nothing, nothing)
    log_prior = torch.full((n, C), -math.log(C))
    return NeighborSet(distances, labels, *facts, torch.zeros(n, N_SUMMARY), log_prior)


def views(n, seed, n_views=2):
    """Neighbors of queries in two key spaces; two in three carry the query's class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, C, (n,), generator=generator)
    found = []
    for _ in range(n_views):
        spaces, positions, queries = [], [], []
        for _ in range(2):
            right = torch.rand(n, K, generator=generator) < 0.67
            other = torch.randint(0, C, (n, K), generator=generator)
            distances = torch.rand(n, K, generator=generator).sort(dim=1).values
            distances[:, 0] = 0.0  # an exact copy
            spaces.append(neighbors(distances, torch.where(right, labels[:, None], other)))
            positions.append(torch.randint(0, N_MEMORY, (n, K), generator=generator))
            queries.append(torch.randn(n, WIDTH, generator=generator))
        logits = torch.randn(n, C, generator=generator)
        logits[torch.arange(n), labels] += 1.0
        found.append(View(spaces, positions, queries, torch.log_softmax(logits, dim=1)))
    return found, labels


def exchange(own=None, n=120, **options):
    fitted, labels = views(n, 0)
    test, truth = views(200, 1)
    generator = torch.Generator().manual_seed(2)
    memory = [torch.randn(N_MEMORY, WIDTH, generator=generator) for _ in range(2)]
    own = uniform if own is None else own
    weights = [own(part, of) for part, of in ((fitted, labels), (test, truth))]
    prior = torch.full((C,), 1 / C)
    return Exchange(fitted, test, labels, prior, memory, tuple(weights), 0, **options), truth


def uniform(parts, labels):
    return [[torch.full((len(labels), K), 1 / K) for _ in view.spaces] for view in parts]


def knowing(parts, labels):
    """Weights that go to the neighbors of the query's own class."""
    found = []
    for view in parts:
        right = [(space.labels == labels[:, None]).float() + 1e-3 for space in view.spaces]
        found.append([one / one.sum(1, keepdim=True) for one in right])
    return found


def nll(proba, truth):
    return -np.log(proba[np.arange(len(truth)), truth.numpy()]).mean()


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_every_weighting_gives_probabilities_and_repeats(name):
    shared, _ = exchange()
    found = weigh(shared, name)
    assert found.proba.shape == (200, C)
    np.testing.assert_allclose(found.proba.sum(axis=1), 1)
    np.testing.assert_array_equal(weigh(shared, name).proba, found.proba)
    assert json.loads(json.dumps(found.details))["temperature"] > 0


def test_attention_that_weighs_all_alike_is_the_uniform_weighting():
    shared, _ = exchange()
    np.testing.assert_allclose(
        weigh(shared, "attention").proba, weigh(shared, "uniform").proba, atol=1e-6
    )


def test_normalised_attention_does_not_depend_on_what_it_leaves_to_no_neighbor():
    shared, _ = exchange()
    part = 0.3 + 0.6 * torch.rand(1000, 1, generator=torch.Generator().manual_seed(0))
    less = [[[weight * part[: len(weight)] for weight in v] for v in views] for views in shared.own]
    shared = replace(shared, own=tuple(less))
    uniform = weigh(shared, "uniform").proba
    np.testing.assert_allclose(weigh(shared, "attention-normalised").proba, uniform, atol=1e-3)
    assert np.abs(weigh(shared, "attention").proba - uniform).max() > 0.01


def test_weights_that_know_the_class_are_found_better_than_all_others():
    shared, truth = exchange(knowing)
    losses = {name: nll(weigh(shared, name).proba, truth) for name in WEIGHTINGS}
    others = min(loss for name, loss in losses.items() if not name.startswith("attention"))
    assert losses["attention"] < 0.5 * others
    assert losses["attention"] < nll(base_alone(shared).proba, truth)


def keys_that_tell():
    """Neighbors at random; only a query's likeness to a neighbor's key shows which to believe."""
    generator = torch.Generator().manual_seed(3)
    stored = torch.arange(N_MEMORY) % C
    directions = torch.eye(C, WIDTH)
    memory = 2 * directions[stored] + 0.3 * torch.randn(N_MEMORY, WIDTH, generator=generator)

    def part(n):
        labels = torch.randint(0, C, (n,), generator=generator)
        positions = torch.randint(0, N_MEMORY, (n, K), generator=generator)
        distances = torch.rand(n, K, generator=generator).sort(dim=1).values
        space = neighbors(distances, stored[positions])
        queries = 2 * directions[labels] + 0.3 * torch.randn(n, WIDTH, generator=generator)
        return [View([space], [positions], [queries], torch.full((n, C), -math.log(C)))], labels

    (fitted, labels), (test, truth) = part(300), part(200)
    own = uniform(fitted, labels), uniform(test, truth)
    return Exchange(fitted, test, labels, torch.full((C,), 1 / C), [memory], own, 0), truth


def test_multi_head_attention_wins_where_only_the_keys_tell_the_classes():
    shared, truth = keys_that_tell()
    losses = {name: nll(weigh(shared, name).proba, truth) for name in WEIGHTINGS}
    others = min(loss for name, loss in losses.items() if name != "multi-head")
    assert losses["multi-head"] < 0.5 * others, losses


def test_missing_weight_goes_to_the_class_shares():
    """A weighting that asks nobody leaves the base alone."""

    def nobody(parts, labels):
        return [[torch.zeros(len(labels), K) for _ in view.spaces] for view in parts]

    shared, _ = exchange(nobody, n=4000)
    np.testing.assert_allclose(
        weigh(shared, "attention").proba, base_alone(shared).proba, atol=1e-2
    )


def test_the_pool_is_what_its_formula_says():
    shared, _ = exchange()
    found = weigh(shared, "distance")
    gates = found.details
    row, expected = 7, torch.zeros(C)
    for view in shared.test:
        log_p = gates["base"] * view.base_log_proba[row]
        for space, gate in zip(view.spaces, gates["spaces"], strict=True):
            reciprocal = [1 / max(float(d), 1e-6) for d in space.distances[row]]
            votes = torch.zeros(C)
            for weight, label in zip(reciprocal, space.labels[row].tolist(), strict=True):
                votes[label] += weight / sum(reciprocal)
            log_p = log_p + gate * torch.log(
                (1 - gates["smoothing"]) * votes + gates["smoothing"] / C
            )
        expected += torch.softmax(log_p, dim=0) / len(shared.test)
    expected = torch.softmax(expected.log() / gates["temperature"], dim=0)
    np.testing.assert_allclose(found.proba[row], expected.numpy(), atol=1e-4)


def test_the_weights_of_the_head_are_those_of_its_output():
    view = views(30, 3)[0][0]
    weights = own_weights(shared_head(), view.spaces)
    output = shared_head().predict(view.spaces, view.base_log_proba)
    among = shared_head().attend(view.spaces).of_spaces[:, 1]
    given = torch.zeros(30)
    for at, (weight, shown) in enumerate(zip(weights, output.weights, strict=True)):
        share = (among[:, at] / among.sum(1))[:, None]
        torch.testing.assert_close(weight * share, shown)
        assert (weight.sum(1) < 1 + 1e-5).all()
        given += (weight * share).sum(1)
    torch.testing.assert_close(1 - given, output.null_mass, atol=1e-5, rtol=0)


def blobs(n=150):
    rng = np.random.default_rng(0)
    y = np.arange(n) % C
    X = rng.normal(size=(n, 4)) + 1.5 * np.eye(C, 4)[y]
    labels = np.array(["a", "b", "c"])[y]
    return Dataset("blobs", X.astype(np.float32), labels, "target", "embeddings", "made here")


@pytest.fixture
def short(monkeypatch):
    """Train multi-head attention for a moment."""
    monkeypatch.setitem(weightings._TRAINING, "epochs", 2)


@pytest.mark.usefixtures("short")
def test_a_table_has_every_row_with_and_without_a_base(run):
    records = run("weights", blobs(), "v1")
    rows = {(r.condition, r.method) for r in records if r.status == "ok"}
    assert rows == {("with=base", name) for name in (*WEIGHTINGS, "base", "classifier")} | {
        ("without=base", name) for name in (*WEIGHTINGS, "classifier")
    }
    assert all(r.nll < math.log(C) for r in records)
    assert all(r.versions["torch"] and r.command == "test" for r in records)


@pytest.mark.usefixtures("short")
def test_a_rare_class_does_not_end_the_table(run):
    data = blobs()
    labels = data.y.astype(object)
    labels[:2] = "rare"  # one is left for the training part, and the memory gets it
    rare = replace(data, y=labels.astype(str))
    records = run("weights", rare, "v1", config={"preset": "instant"})
    assert {r.reason for r in records} == {None}
    assert len(records) == 19
    assert {r.n_classes for r in records} == {4}


INSTANT = {"preset": "instant", "noise_rates": [0.0, 0.3], "tail_ratios": [1.0, 0.1]}


@pytest.fixture
def measured(run):
    """Rows of an experiment by condition, noise, kind of noise and method."""

    def measure(name, **settings):
        records = run(name, blobs(210), "v1", config=INSTANT | settings)
        assert {r.reason for r in records} == {None}
        return {(r.condition, r.noise, r.noise_kind, r.method): r for r in records}

    return measure


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_wrong_labels_are_judged_by_given_and_by_right_labels_and_corrected_for_all(measured):
    found = measured("weights-noise", preset="default", cv=2)
    for kind in ("symmetric", "asymmetric"):
        for name in (*WEIGHTINGS, "classifier"):
            for where in ("memory", "everywhere"):
                for how in ("as-given", "corrected"):
                    assert (f"{where}; {how}; without=base", 0.3, kind, name) in found
            right, given = (
                found[f"everywhere; as-given; without=base{judged}", 0.3, kind, name]
                for judged in ("", "; given-labels")
            )
            assert given.nll != right.nll, (kind, name)  # the same answers, other labels
        accuracies = [
            [found[f"everywhere; as-given; without=base{judged}", 0.3, kind, name].accuracy
             for name in WEIGHTINGS]
            for judged in ("", "; given-labels")
        ]  # fmt: skip
        # against labels of which 30 % are wrong one is right less often
        assert np.mean(accuracies[1]) < np.mean(accuracies[0])


@pytest.mark.parametrize("name", ["uniform", "distance-learned", "distance+agreement", "attention"])
def test_wrong_labels_are_counted_out_alike_for_every_weighting(name):
    """A pool that knows how labels went wrong is surer of the right ones than one that does not."""
    shared, truth = exchange(n=1500)
    rng, rate = np.random.default_rng(0), 0.4
    moved = rng.random(1500) < rate
    wrong = torch.from_numpy(np.where(moved, rng.integers(1, C, 1500), 0))
    given = replace(shared, labels=(shared.labels + wrong) % C)
    matrix = np.full((C, C), rate / (C - 1)) + (1 - rate - rate / (C - 1)) * np.eye(C)
    unaware = weigh(given, name).proba
    aware = weigh(replace(given, label_model=known_noise(matrix)), name).proba
    right = weigh(shared, name).proba
    assert nll(aware, truth) < nll(unaware, truth) - 0.02
    assert nll(aware, truth) < nll(right, truth) + 0.05


def known_noise(matrix):
    labels = np.arange(C).repeat(10)
    transition = known_transition(matrix, labels)
    return NoisyLabels(transition=transition, matrices=torch.from_numpy(matrix).float()[None])


@pytest.mark.usefixtures("short")
def test_a_long_tail_is_corrected_to_the_shares_before_it(measured):
    found = measured("weights-tail")
    for name in (*WEIGHTINGS, "base", "classifier"):
        row = {
            what: found[f"ratio=0.1; {what}; with=base", 0.0, "symmetric", name]
            for what in ("as-given", "corrected")
        }
        assert row["corrected"].nll < row["as-given"].nll, name


@pytest.mark.parametrize("name", ["weights", "weights-noise", "weights-tail"])
def test_it_belongs_to_the_corrected_method(name, run):
    with pytest.raises(ValueError, match=f'"{name}" compares weightings within AttnKNNClassifier'):
        run(name, blobs(), "v0.5")
