"""A stopped run goes on to exactly the result of an unbroken one."""

import contextlib

import pytest
import torch

from nearwise.memory.store import StoreError, read_folder, write_folder
from nearwise.training import TrainingRows, objective, train_embedder
from nearwise.training.checkpoint import FORMAT_VERSION, KIND
from tests.training.cases import blobs, quick, same_weights, small_network, timeless, weights_of

SETTINGS = {"fresh": {"mixup_alpha": 0.4}, "cached": {"cache_momentum": 0.0, "ce_weight": 0.5}}


@pytest.fixture(autouse=True)
def checkpoint_of_every_epoch(monkeypatch):
    monkeypatch.setattr(objective, "_CHECKPOINT_SECONDS", 0.0)


def run(checkpoint=None, epochs=12, progress=None, settings="fresh", seed=0, rows=None, shift=0.0):
    network = small_network(head=True, dropout=0.2)
    with torch.no_grad():
        network.head.bias += shift
    result = train_embedder(
        network,
        blobs() if rows is None else rows,
        blobs(40, 1, 1000),
        quick(epochs=epochs, **SETTINGS[settings]),
        seed=seed,
        checkpoint=checkpoint,
        progress=progress,
    )
    return weights_of(network), timeless(result.history), result


class Killed(BaseException):
    """Ends a run as a kill does: nothing more is written."""


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("how", [KeyboardInterrupt, Killed])
@pytest.mark.filterwarnings("ignore:Training was interrupted")
def test_a_stopped_run_goes_on_to_the_result_of_an_unbroken_one(tmp_path, settings, how):
    def stop(record):
        if record["epoch"] in (1, 7):
            raise how

    weights, history, result = run(settings=settings)
    for epoch in (1, 7):
        with contextlib.suppress(Killed):
            run(tmp_path / "run", progress=stop, settings=settings)
        left = read_folder(tmp_path / "run", kind=KIND, newest_version=FORMAT_VERSION)
        assert left.meta["state"]["epoch"] == epoch
    again, history_again, resumed = run(tmp_path / "run", settings=settings)
    assert same_weights(again, weights)
    assert history_again == history
    assert (resumed.best_epoch, resumed.best_value) == (result.best_epoch, result.best_value)


def test_finished_run_is_not_trained_again(tmp_path):
    weights, history, _ = run(tmp_path / "run", epochs=3)

    def fail(record):
        raise AssertionError("an epoch was trained")

    again, history_again, _ = run(tmp_path / "run", epochs=3, progress=fail)
    assert same_weights(again, weights)
    assert history_again == history


@pytest.mark.parametrize("change", ["seed", "data", "settings", "starting weights"])
def test_checkpoint_of_another_run_is_refused(tmp_path, change):
    run(tmp_path / "run", epochs=2)
    rows = blobs()
    other = {
        "seed": {"seed": 1},
        "data": {"rows": TrainingRows(rows.x_num + 1, rows.labels, ids=rows.ids)},
        "settings": {"settings": "cached"},
        "starting weights": {"shift": 1.0},
    }[change]
    with pytest.raises(ValueError, match="belongs to another run"):
        run(tmp_path / "run", epochs=2, **other)


def test_folder_that_is_not_ours_is_refused_before_the_first_epoch(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")

    def fail(record):
        raise AssertionError("an epoch was trained")

    with pytest.raises(StoreError, match="not ours"):
        run(tmp_path, epochs=2, progress=fail)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "damage",
    [
        lambda meta, tensors: meta.pop("state"),
        lambda meta, tensors: meta.update(state={"other": 1}),
        lambda meta, tensors: meta.update(state=5),
        lambda meta, tensors: tensors.pop("random/torch"),
        lambda meta, tensors: tensors.update({"random/torch": torch.zeros(3)}),
        lambda meta, tensors: tensors.update({"optimizer/x/step": torch.zeros(1)}),
        lambda meta, tensors: tensors.update({"nothing": torch.zeros(1)}),
    ],
)
def test_a_checkpoint_that_holds_something_else_is_refused(tmp_path, damage):
    run(tmp_path / "kept", epochs=1)
    found = read_folder(tmp_path / "kept", kind=KIND, newest_version=FORMAT_VERSION)
    damage(found.meta, found.tensors)
    write_folder(
        tmp_path / "run",
        kind=KIND,
        format_version=FORMAT_VERSION,
        tensors=found.tensors,
        meta=found.meta,
    )
    with pytest.raises(StoreError, match="never writes") as caught:
        run(tmp_path / "run", epochs=1)
    assert caught.value.reason == "invalid"
