"""Folders of images come in by the same door as tables: fit, predict, evaluate, add, clean."""

import shutil
import sys

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from nearwise import AttnKNNClassifier
from nearwise.data.tables.files import read_table, write_table
from tests.estimators.cases import attn_knn
from tests.estimators.image_cases import QUICK, named_folder, patches
from tests.estimators.photograph_cases import install_weights, mixed_folder, remove_weights

FAST = ("--embedder", "resnet-small", "--epochs", "2", "--quiet")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Give a folder with train and test parts, and a model of it; read them only."""
    root = tmp_path_factory.mktemp("pictures")
    named_folder(root / "set" / "train", 80)
    named_folder(root / "set" / "val", 12, seed=1)
    attn_knn(**QUICK).fit(root / "set").save(root / "model")
    (root / "new" / "deeper").mkdir(parents=True)
    for place, image in enumerate(patches(3, seed=1)[0]):
        where = root / "new" / ("deeper" if place == 1 else "")
        Image.fromarray(image[..., 0]).save(where / f"{place}.png")
    Image.new("L", (20, 16)).save(root / "large.png")
    return root


def test_a_folder_is_fitted_predicted_and_measured(nearwise, pictures, tmp_path):
    model = tmp_path / "model"
    done = nearwise("fit", pictures / "set", "--out", model, *FAST[:-1])
    assert done.exit_code == 0, done.err
    assert "took its training part, 80 images, and left its test part out" in done.err
    assert "Learned 2 classes from 80 images of 8 x 8 x 1" in done.err
    assert "on 20 held-out images" in done.err
    assert not (tmp_path / "model.checkpoint").exists()
    measured = nearwise("evaluate", model, pictures / "set", "--json", "-", "--resamples", 20)
    assert "took its test part, 12 images" in measured.err
    assert measured.json()["n"] == 12


def test_images_are_predicted_file_by_file(nearwise, pictures):
    result = nearwise("predict", pictures / "model", pictures / "new", "--proba")
    assert result.exit_code == 0, result.err
    table = result.table()
    assert list(table.columns) == ["file", "prediction", "proba_down", "proba_up"]
    files = [pictures / "new" / name for name in ("0.png", "2.png", "deeper/1.png")]
    assert table["file"].tolist() == [str(file) for file in files]
    listed = nearwise("predict", pictures / "model", *reversed(files), "--proba")
    np.testing.assert_allclose(listed.table()["proba_up"], table["proba_up"][::-1], atol=1e-6)


def test_neighbors_are_named_by_their_files(nearwise, pictures):
    file = pictures / "new" / "0.png"
    ask = ("predict", pictures / "model", file, "--explain", "--neighbors", 2)
    table = nearwise(*ask).table()
    name, row = table["neighbor_1_file"][0], table["neighbor_1_id"][0]
    assert name.split("/")[:3] == ["set", "train", table["neighbor_1_label"][0]]
    assert (pictures / name).is_file()
    record = nearwise(*ask, "--format", "jsonl").json()
    assert record["neighbors"][0]["row"] == {"file": name}
    shown = nearwise("inspect", pictures / "model", "--rows", row, "--json").json()
    assert shown == [{"id": row, "class": table["neighbor_1_label"][0], "file": name}]
    assert "set: 80" in nearwise("inspect", pictures / "model").out


def test_images_of_another_size_are_resized_only_when_asked(nearwise, pictures):
    large = pictures / "large.png"
    refused = nearwise("predict", pictures / "model", large)
    assert refused.exit_code == 2 and "Add --resize" in refused.err
    assert nearwise("predict", pictures / "model", large, "--resize").exit_code == 0


def test_a_model_learns_more_images_and_a_class(nearwise, pictures, tmp_path):
    model = shutil.copytree(pictures / "model", tmp_path / "model")
    named_folder(tmp_path / "more", 4, seed=2)
    (tmp_path / "more" / "left").mkdir()
    Image.new("L", (9, 9), 7).save(tmp_path / "more" / "left" / "1.png")
    refused = nearwise("add", model, tmp_path / "more")
    assert refused.exit_code == 2 and "--resize" in refused.err
    done = nearwise("add", model, tmp_path / "more", "--resize")
    assert "Added 5 images" in done.err and "now holds 85 images" in done.err
    assert "the new classes left" in done.err
    assert AttnKNNClassifier.load(model).fitted_.row_names[-1] == "more/up/002.png"


def test_a_model_of_numbers_knows_folders_named_by_them(nearwise, tmp_path):
    images, labels = patches(80)
    attn_knn(**QUICK).fit(images, (labels == "up").astype(int)).save(tmp_path / "model")
    named_folder(tmp_path / "new", 6, seed=3)
    (tmp_path / "new" / "up").rename(tmp_path / "new" / "1")
    (tmp_path / "new" / "down").rename(tmp_path / "new" / "0")
    options = ("--json", "-", "--resamples", 20)
    assert nearwise("evaluate", tmp_path / "model", tmp_path / "new", *options).exit_code == 0


@pytest.mark.slow
def test_wrong_labels_are_ranked_with_their_files(nearwise, tmp_path):
    folder = named_folder(tmp_path / "set", 80)
    wrong = [folder / "down" / "001.png", folder / "down" / "003.png"]
    for file in wrong:
        file.rename(folder / "up" / file.name)
    out = tmp_path / "suspects.csv"
    ask = ("clean", folder, "--out", out, "--top", 3)
    done = nearwise(*ask, "--noise", "0.05")
    assert done.exit_code == 0, done.err
    written = pd.read_csv(out)
    assert len(written) == 80
    assert {f"set/up/{file.name}" for file in wrong} & set(written["file"][:4])
    assert written["file"][0] in done.out
    few = nearwise(*ask, "--noise", "none")
    assert few.exit_code == 0 and "other 20" in few.err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("fit", "set", "-o", "m", "--target", "kind"), "label of an image is the name of its"),
        (("fit", "set", "-o", "m", "--drop", "id"), "--drop names a column; images have none"),
        (("fit", "set", "-o", "m", "--image-size", "8by8"), "not a size in pixels. Write 64, or"),
        (("fit", "new", "-o", "m"), "(2 such images), so its class is not known"),
        (("fit", "large.png", "-o", "m"), "large.png is a file. Labels come from folders"),
        (("fit", "tables", "-o", "m"), "a folder that holds tables. Give one of them: tables"),
        (("clean", "model"), "model is the folder of a saved model. Give a table, or a folder of"),
        (("fit", "tables/t.csv", "-o", "m", "-t", "a", "--color", "rgb"), "--color is for images"),
        (("fit", "tables/t.csv", "-o", "m"), "Which column of tables/t.csv holds the labels?"),
        (("predict", "model", "tables/t.csv"), "fitted on images, and tables/t.csv is not one"),
        (("predict", "model", "none"), "no file or folder none"),
        (("predict", "model", "new", "--copy", "id"), "images have no columns"),
        (("evaluate", "model", "large.png"), "large.png is a file. Labels come from"),
        (("evaluate", "model", "none"), "no file or folder none"),
        (("add", "model", "new"), "lies beside the class folders"),
        (("inspect", "model", "--rows", "900-905"), "does not remember 900, 901"),
    ],
)
def test_what_does_not_fit_images_is_explained(nearwise, pictures, monkeypatch, command, message):
    monkeypatch.chdir(pictures)
    (pictures / "tables").mkdir(exist_ok=True)
    (pictures / "tables" / "t.csv").write_text("a,b\n1,2\n")
    result = nearwise(*command)
    assert result.exit_code == 2
    assert message in result.err


def test_a_model_of_tables_is_given_tables_alone(nearwise, pictures, trained, tables):
    folder = nearwise("predict", trained, pictures / "new")
    assert folder.exit_code == 2 and "was fitted on a table, and" in folder.err
    many = nearwise("predict", trained, tables / "new.csv", tables / "new.csv")
    assert many.exit_code == 2 and "give one table, not 2" in many.err
    resized = nearwise("predict", trained, tables / "new.csv", "--resize")
    assert resized.exit_code == 2 and "--resize is for images" in resized.err


def test_photographs_of_mixed_sizes_need_no_option(nearwise, monkeypatch, tmp_path):
    install_weights(monkeypatch, tmp_path)
    photos, may = mixed_folder(tmp_path / "all"), mixed_folder(tmp_path / "may", 12, seed=1)
    model = tmp_path / "model"
    done = nearwise("fit", photos, "--out", model, "--preset", "instant")
    assert done.exit_code == 0, done.err
    assert "resized to 128 x 128" in done.err and "--image-size 160" in done.err
    assert "3 of 24 images are grey, and are read as color" in done.err
    assert "24 images of 128 x 128 x 3, embedded by efficientnet-lite0" in done.err
    assert len(nearwise("predict", model, may).table()) == 12
    for command in ("explain", "evaluate", "add"):
        assert nearwise(command, model, may, "--quiet").exit_code == 0, command
    own = tmp_path / "own"
    done = nearwise("fit", photos, "-o", own, "--preset", "instant", "--image-size", "70x80")
    assert "resized" not in done.err and "images of 70 x 80 x 3" in done.err
    assert len(nearwise("predict", own, may / "fine" / "00.png").table()) == 1
    remove_weights(monkeypatch)
    refused = nearwise("fit", photos, "--out", tmp_path / "none", "--color", "rgb")
    assert refused.exit_code == 2 and "--image-size 128" in refused.err


def test_files_that_cannot_be_read_are_named_or_left_out_when_asked(nearwise, pictures, tmp_path):
    shutil.copytree(pictures / "new", tmp_path / "new")
    (tmp_path / "new" / "broken.png").write_bytes(b"not an image")
    (tmp_path / "new" / "notes.txt").write_text("x")
    broken = nearwise("predict", pictures / "model", tmp_path / "new")
    assert broken.exit_code == 2 and "broken.png cannot be read" in broken.err
    assert "left out 1 file" in broken.err and "notes.txt" in broken.err
    done = nearwise("predict", pictures / "model", tmp_path / "new", "--skip-damaged")
    assert done.exit_code == 0 and len(done.table()) == 3
    assert "broken.png" in done.err and "1 of 4 left out" in done.err


def test_without_pillow_the_error_says_what_to_install(nearwise, pictures, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    result = nearwise("predict", pictures / "model", pictures / "new")
    assert result.exit_code == 2 and "pip install nearwise[images]" in result.err


def test_embeddings_show_the_files_that_they_were_made_of(nearwise, pictures, tmp_path):
    folder = named_folder(tmp_path / "more", 40, seed=3)
    data, out = tmp_path / "e.npz", tmp_path / "m"
    assert nearwise("embed", pictures / "model", folder, "--out", data).exit_code == 0
    table = read_table(data)
    write_table(table.assign(label=[file.split("/")[-2] for file in table["file"]]), data)
    options = ["--target", "label", "--out", out, "--show", "file", "--preset", "instant"]
    assert nearwise("fit", data, *options).exit_code == 0
    shown = AttnKNNClassifier.load(out).fitted_.row_names.tolist()
    assert sorted(shown) == sorted(str(file) for file in folder.rglob("*.png"))
    refused = nearwise("fit", folder, "--out", tmp_path / "n", "--show", "file")
    assert refused.exit_code == 2 and "names a column; images have none" in refused.err
