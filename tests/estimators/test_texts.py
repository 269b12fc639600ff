"""Columns of text: found, read by their words, remembered, shown, saved, and refused."""

import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from nearwise.cli.rows.column_options import column_uses
from nearwise.data.tables.words import marked_words
from nearwise.estimators import AttnKNNClassifier, AttnKNNRegressor
from nearwise.estimators.inputs.columns import plan_columns
from nearwise.estimators.inputs.table import TableEncoder
from nearwise.estimators.inputs.text_vectors import EmbedderError, kind_of_folder
from nearwise.estimators.inputs.texts import TextColumn
from nearwise.html.card import make_card
from nearwise.memory import StoreError, read_folder, write_folder
from nearwise.warn import RowsWarning

THINGS = ("cat", "dog", "horse", "cow", "goose", "goat", "sheep", "pig")
SAYS = {"shop": "please send the {} to my house before {}", "farm": "our {} grazed in the {} field"}


def sentences(n, seed=0):
    """Sentences of two kinds, which their words tell apart, and the kinds."""
    rng = np.random.default_rng(seed)
    kinds = np.array([*SAYS])[rng.integers(0, 2, n)]
    texts = [
        SAYS[kind].format(rng.choice(THINGS), rng.choice(["noon", "spring", "May"]))
        + f" {rng.choice(THINGS)} {rng.integers(1000)}"
        for kind in kinds
    ]
    return pd.Series(texts, dtype=object), kinds


@pytest.fixture(scope="module")
def mixed():
    """Two columns: text, and a number that decides as much."""
    texts, kinds = sentences(160)
    rng = np.random.default_rng(1)
    y = np.where((kinds == "farm") ^ (rng.random(160) < 0.1), "yes", "no")
    return pd.DataFrame({"body": texts, "size": rng.normal(size=160) + 2 * (y == "yes")}), y


def use(values, name="body", **wishes):
    (plan,) = plan_columns(pd.DataFrame({name: values}), wishes or None)
    return plan.report


def test_cells_of_several_words_are_text_and_other_text_is_not():
    texts, _ = sentences(60)
    found = use(texts)
    assert found.use == "text" and "mostly several words" in found.reason
    assert use(texts, body=found.change).use == found.change == "category"
    assert use(texts.where(texts.index % 3 > 0)).use == "text"  # with gaps
    assert use([f"{a} {b}" for a in "abcdef" for b in "uvwxyz"]).use == "left out"  # two words
    assert use(["a shop in town", "a farm in the hills"] * 30).use == "category"
    assert use(texts, name="id").use == "left out"
    assert use([f"2024-0{m}-0{d} 10:00 pm" for m in range(1, 7) for d in range(1, 7)]).use != "text"


def test_wishes_make_text_and_unmake_it():
    texts, _ = sentences(60)
    assert use(["red hat", "blue hat"] * 30, body="text").use == "text"
    assert use(texts, body="category").use == "category"
    assert use(texts, body="left out").use == "left out"
    with pytest.raises(ValueError, match="holds numbers"):
        use(range(60), body="text")


def test_terms_and_components_of_a_text_do_not_depend_on_the_rows_around_it():
    texts, _ = sentences(120)
    column, terms = TextColumn.fit(texts)
    assert sparse.issparse(terms) and terms.shape == (120, len(column.idf))
    every = column.components(texts, terms)
    for at in (0, 57, 119):
        one = texts.iloc[[at]]
        assert (column.terms(one) != terms[at]).nnz == 0
        np.testing.assert_array_equal(column.components(one, column.terms(one))[0], every[at])


@pytest.mark.parametrize(
    "text", ["", "   ", "?!", "zzz qqq unheard-of", "ß" * 10_000, None, np.nan]
)
def test_any_text_can_be_asked(mixed, text):
    frame, y = mixed
    model = AttnKNNClassifier(preset="instant", random_state=0).fit(frame, y)
    row = pd.DataFrame({"body": [text], "size": [0.0]}).astype({"body": object})
    proba = model.predict_proba(row)
    assert np.isfinite(proba).all() and proba.sum() == pytest.approx(1)
    if text is None:
        with pytest.warns(UserWarning, match="Missing values"):
            model.predict(row)


def test_texts_of_unknown_words_are_counted_in_a_warning(mixed):
    X, y = mixed
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = AttnKNNClassifier(preset="instant", random_state=0).fit(X, y)
        model.predict(X)
        model.predict(pd.DataFrame({"body": ["horsey"], "size": 0.0}))  # "horse" is known
    asked = pd.DataFrame({"body": ["zzqq xxyy wwvv", X["body"][0], "???", None], "size": 0.0})
    with pytest.warns(RowsWarning, match=r"that the model knows: body \(2\)\. They say next"):
        model.predict(asked)


@pytest.mark.parametrize("texts", [["? ! ;"] * 40, [f"{i} {i} {i}" for i in range(40)]])
def test_texts_without_common_words_are_read(texts):
    model = AttnKNNClassifier(preset="instant", columns={"body": "text"}, random_state=0)
    model.fit(pd.DataFrame({"body": texts}), np.arange(40) % 2)
    assert np.isfinite(model.predict_proba(pd.DataFrame({"body": texts}))).all()


def test_words_decide_where_nothing_else_does():
    texts, kinds = sentences(200)
    train, test = slice(0, 140), slice(140, None)
    model = AttnKNNClassifier(cv=2, random_state=0).fit(texts[train].to_frame("body"), kinds[train])
    assert model.score(texts[test].to_frame("body"), kinds[test]) > 0.95
    assert {"text-logistic", "text-bayes"} <= model.report_.choice["base_nll"].keys()


def test_words_decide_a_number_where_nothing_else_does(tmp_path):
    rng = np.random.default_rng(0)
    words = np.array(
        [f"{a}{b}" for a in ("ka", "lo", "mi", "nu", "re", "so") for b in "bdfglmprst"]
    )
    worth, chosen = rng.normal(size=60), rng.integers(0, 60, (240, 6))
    X = pd.DataFrame({"body": [" ".join(words[row]) for row in chosen], "size": 1.0})
    y, train, test = worth[chosen].sum(1), slice(0, 180), slice(180, None)
    model = AttnKNNRegressor(cv=3, random_state=0).fit(X[train], y[train])
    base = model.report_.choice["base"]
    assert "text-ridge" in base
    assert model.score(X[test], y[test]) > 0.7
    model.save(tmp_path / "m")
    again = AttnKNNRegressor.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict(X[test]), model.predict(X[test]))


def test_texts_alone_are_read_by_gaussian_classes_at_once():
    texts, kinds = sentences(400)
    train, test = slice(0, 250), slice(250, None)
    model = AttnKNNClassifier(preset="instant", random_state=0)
    model.fit(texts[train].to_frame("body"), kinds[train])
    assert model.report_.choice["base"] == {"gaussian": 1.0}
    assert model.score(texts[test].to_frame("body"), kinds[test]) > 0.95


def test_a_column_stays_text_when_rows_go():
    texts, kinds = sentences(22)
    model = AttnKNNClassifier(preset="instant", random_state=0)
    model.fit(texts.to_frame("body"), kinds)
    model.remove([*range(6)])
    assert model.report_.columns == {"body": "text"}


def test_text_beside_other_columns_has_a_key_space_of_its_own(mixed):
    frame, y = mixed
    model = AttnKNNClassifier(preset="instant", random_state=0).fit(frame, y)
    assert {"features", "text"} <= {*model.memory_.keys}
    keys = model.memory_.keys["features"]
    other = AttnKNNClassifier(preset="instant", random_state=0).fit(frame[["size"]], y)
    assert keys.shape == other.memory_.keys["features"].shape  # without the text
    alone = AttnKNNClassifier(preset="instant", random_state=0).fit(frame[["body"]], y)
    assert "text" not in alone.memory_.keys  # the features are the text


@pytest.mark.parametrize("columns", [["body"], ["body", "size"]])
@pytest.mark.parametrize("kind", [AttnKNNClassifier, AttnKNNRegressor])
def test_a_model_of_texts_is_saved_learns_and_forgets(kind, columns, mixed, tmp_path):
    frame, y = mixed
    y = y if kind is AttnKNNClassifier else frame["size"].to_numpy() + (y == "yes")
    model = kind(preset="instant", random_state=0).fit(frame[columns], y)
    model.save(tmp_path / "m")
    again = kind.load(tmp_path / "m")
    ask = again.predict_proba if kind is AttnKNNClassifier else again.predict
    own = model.predict_proba if kind is AttnKNNClassifier else model.predict
    np.testing.assert_array_equal(ask(frame[columns]), own(frame[columns]))
    for one in (model, again):
        one.add(frame[columns][:3], y[:3])
        one.remove([5])
    np.testing.assert_array_equal(ask(frame[columns]), own(frame[columns]))
    (explained,) = again.explain(frame[columns][:1])
    assert explained.neighbors[0].row["body"] in set(frame["body"])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda meta, arrays: meta["encoder"]["texts"]["body"]["words"].pop(),
        lambda meta, arrays: meta["encoder"]["texts"]["body"]["words"].append("house"),
        lambda meta, arrays: meta["encoder"]["texts"].clear(),
        lambda meta, arrays: meta["encoder"]["texts"]["body"].update(n_components=3),
        lambda meta, arrays: meta["encoder"]["texts"]["body"].update(embedder={"folder": "m"}),
        lambda meta, arrays: meta.update(texts=None),
        lambda meta, arrays: arrays.pop("encoder/0/idf"),
        lambda meta, arrays: arrays["encoder/0/idf"].neg_(),
        lambda meta, arrays: arrays["encoder/0/axes"].fill_(float("nan")),
    ],
)
def test_a_forged_folder_is_refused(spoil, mixed, tmp_path):
    frame, y = mixed
    AttnKNNClassifier(preset="instant", random_state=0).fit(frame, y).save(tmp_path / "m")
    kind, version = "attention k-NN classifier", 8
    content = read_folder(tmp_path / "m", kind=kind, newest_version=version)
    spoil(content.meta, content.tensors)
    write_folder(
        tmp_path / "bad",
        kind=kind,
        format_version=version,
        tensors=content.tensors,
        meta=content.meta,
        blobs=content.blobs,
    )
    with pytest.raises(StoreError):
        AttnKNNClassifier.load(tmp_path / "bad")


def test_shared_words_are_marked():
    assert marked_words("a b", "a b") == []  # no text
    pieces = marked_words("Win a PRIZE now!", "the prize, now, for you")
    assert "".join(piece for piece, _ in pieces) == "Win a PRIZE now!"
    assert [piece for piece, is_shared in pieces if is_shared] == ["PRIZE", "now"]
    texts, kinds = sentences(120)
    model = AttnKNNClassifier(preset="instant", random_state=0).fit(texts.to_frame("body"), kinds)
    card = make_card(model.explain(texts[:1].to_frame("body") + " <b>now</b>")[0])
    assert "body shares" in card.text
    html = model.explain(texts[:1].to_frame("body") + " <b>now</b>")[0]._repr_html_()
    assert "<mark>" in html and "<b>now" not in html


def test_an_encoder_of_texts_is_rebuilt_from_json_and_arrays(mixed):
    frame, _ = mixed
    encoder = TableEncoder()
    encoder.learn(frame)
    again = TableEncoder.from_json(encoder.to_json(), encoder.arrays())
    one, other = encoder.transform(frame), again.transform(frame)
    np.testing.assert_array_equal(one.numbers, other.numbers)
    assert (one.terms != other.terms).nnz == 0
    assert len(one.take(np.array([3, 1])).terms.toarray()) == 2


def lengths(texts):
    """A function from texts to vectors: counts of some letters."""
    return np.array([[text.count(letter) for letter in "aeiot"] for text in texts], dtype=float)


def test_vectors_of_a_function_stand_beside_the_terms(mixed):
    frame, y = mixed
    model = AttnKNNClassifier(columns={"body": lengths}, preset="instant", random_state=0)
    model.fit(frame, y)
    column = model.fitted_.predictor.encoder.texts["body"]
    assert column.n_components == column.axes.shape[1] + 5
    assert model.memory_.keys["text"].shape[1] == column.n_components
    found = column.components(frame["body"], column.terms(frame["body"]))
    of_terms, of_vectors = np.split(found.var(0), [column.axes.shape[1]])
    assert of_vectors.sum() == pytest.approx(of_terms.sum(), rel=0.05)
    assert "with vectors of lengths" in model.report_.column_report[0].reason
    assert model.predict_proba(frame).sum(1) == pytest.approx(1)


def test_a_model_with_a_function_is_not_saved(mixed, tmp_path):
    frame, y = mixed
    model = AttnKNNClassifier(columns={"body": lengths}, preset="instant").fit(frame, y)
    with pytest.raises(ValueError, match="'text:FOLDER'"):
        model.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    "broken",
    [
        lambda texts: lengths(texts)[:-1],
        lambda texts: lengths(texts)[:, 0],
        lambda texts: lengths(texts) * np.nan,
        lambda texts: texts,
    ],
)
def test_vectors_that_do_not_fit_are_refused(mixed, broken):
    frame, y = mixed
    with pytest.raises(ValueError, match="It must return finite numbers"):
        AttnKNNClassifier(columns={"body": broken}, preset="instant").fit(frame, y)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a text model, and a stand-in for the package that reads it."""

    class StaticModel:
        @classmethod
        def from_pretrained(cls, path):
            found = cls()
            found.letters = json.loads((Path(path) / "tokenizer.json").read_text())
            return found

        def encode(self, texts, use_multiprocessing):
            return np.array([[text.count(one) for one in self.letters] for text in texts], float)

    monkeypatch.setitem(sys.modules, "model2vec", SimpleNamespace(StaticModel=StaticModel))
    path = tmp_path / "letters"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "model2vec"}')
    (path / "tokenizer.json").write_text('["a", "e", "o"]')
    return path


@pytest.fixture
def with_folder(mixed, folder):
    frame, y = mixed
    wish = {"body": f"text:{folder}"}
    return AttnKNNClassifier(columns=wish, preset="instant", random_state=0).fit(frame, y), frame


def test_a_model_with_a_folder_is_saved_with_its_path_and_digest(with_folder, tmp_path):
    model, frame = with_folder
    model.save(tmp_path / "m")
    again = AttnKNNClassifier.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))
    again.add(frame[:2], ["yes", "no"])


def test_a_folder_that_changed_or_went_is_not_read(with_folder, folder, tmp_path):
    with_folder[0].save(tmp_path / "m")
    (folder / "tokenizer.json").write_text('["x", "y", "z"]')
    with pytest.raises(EmbedderError, match="changed since the model was fitted"):
        AttnKNNClassifier.load(tmp_path / "m")
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(EmbedderError, match="not a folder here"):
        AttnKNNClassifier.load(tmp_path / "m")


def test_a_folder_that_could_run_code_or_is_no_model_is_refused(mixed, folder):
    frame, y = mixed
    model = AttnKNNClassifier(columns={"body": f"text:{folder}"})
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(EmbedderError, match="can run code"):
        model.fit(frame, y)
    (folder / "pytorch_model.bin").unlink()
    (folder / "config.json").write_text("{}")
    (folder / "modules.json").write_text('[{"type": "sentence_transformers.models.Transformer"}]')
    assert kind_of_folder(str(folder)) == "sentence_transformers"
    (folder / "modules.json").write_text('[{"type": "own.Module"}]')
    with pytest.raises(EmbedderError, match="no model of texts that is known"):
        model.fit(frame, y)


def test_a_package_that_is_missing_is_named(mixed, folder, monkeypatch):
    frame, y = mixed
    monkeypatch.setitem(sys.modules, "model2vec", None)
    with pytest.raises(ImportError, match="pip install model2vec"):
        AttnKNNClassifier(columns={"body": f"text:{folder}"}, preset="instant").fit(frame, y)


def test_options_name_the_folder_of_a_text(folder):
    assert column_uses("a.csv", text=[f"body={folder}", "title", "a=b"]) == {
        "body": f"text:{folder}",
        "title": "text",
        "a=b": "text",
    }


def test_texts_forget_rows_exactly_with_naive_bayes_beside_gaussian_classes():
    rng = np.random.default_rng(0)
    words = np.array([f"{a}{b}" for a in ("ka", "lo", "mi", "nu", "re", "so") for b in "bdfglmp"])
    worth, chosen = rng.normal(size=42), rng.integers(0, 42, (360, 6))
    frame = pd.DataFrame({"body": [" ".join(words[row]) for row in chosen]})
    y = worth[chosen].sum(1) + rng.normal(size=360) > 0
    model = AttnKNNClassifier(preset="instant", random_state=0).fit(frame[:300], y[:300])
    assert {*model.report_.choice["base"]} == {"gaussian", "text-bayes"}
    found = model.report_.choice["base_nll"]
    assert found["pool"] < min(found["gaussian"], found["text-bayes"])
    model.remove(np.arange(40))
    fresh = AttnKNNClassifier(preset="instant", random_state=0).fit(frame[40:300], y[40:300])
    np.testing.assert_allclose(
        model.predict_proba(frame[300:]), fresh.predict_proba(frame[300:]), atol=1e-6
    )
