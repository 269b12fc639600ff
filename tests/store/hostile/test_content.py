"""Behind right checksums every entry is checked: a StoreError names the part that cannot be.

A folder from somebody else may hold anything. It is refused, or it predicts finite probabilities
that sum to 1; it never raises another error and never ends the process.
"""

import functools
import hashlib
import io
import json
import pickle
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.naive_bayes import GaussianNB

from nearwise.estimators import AttnKNNClassifier
from nearwise.estimators.storage.class_parts import KIND
from nearwise.estimators.storage.persistence import VERSION
from nearwise.memory import StoreError, read_folder
from tests.estimators.cases import CHEAP, attn_knn, blobs, sums_to_one
from tests.store.folders import DELETED, copied, edited, put

HUGE = 10**9

# What is changed, its new value, and what the message must say.
JSON = {
    "a parameter of the future": ("params.new_option", 1, "params.new_option: .*no such parameter"),
    "a parameter is missing": ("params.metric", DELETED, "params.metric: missing"),
    "a parameter of another type": ("params.cv", [1], "params.cv"),
    "a metric that is not known": ("params.metric", "hamming", "params.metric"),
    "a new entry": ("surprise", 1, "surprise"),
    "a space with a new entry": ("specs.0.new", 1, "specs.0.new"),
    "choice is missing": ("choice", DELETED, "choice"),
    "history is a number": ("history", 5, "history"),
    "too many classes": ("bank.n_classes", HUGE, "bank.n_classes"),
    "two classes more": ("bank.n_classes", 5, "bank.n_classes"),
    "a class twice": ("classes", [0, 1, 1], "classes: one occurs twice"),
    "classes that are no numbers": ("classes", ["a", "b", "c"], "classes"),
    "one class": ("classes", [0], "classes"),
    "labels of a gigabyte each": ("classes_dtype", "<U1000000000", "classes_dtype"),
    "labels of no type": ("classes_dtype", "what", "classes_dtype"),
    "labels that are records": ("classes_dtype", "|V8", "classes_dtype"),
    "more neighbors than rows": ("specs.0.n_neighbors", HUGE, "n_neighbors"),
    "no neighbors": ("specs.0.n_neighbors", 0, "n_neighbors"),
    "distances without a unit": ("specs.0.unit", 0, "unit"),
    "distances in NaN": ("specs.0.unit", float("nan"), "unit"),
    "a space that is not there": ("specs.0.name", "elsewhere", "indexes.*elsewhere"),
    "a metric of a space": ("specs.0.metric", "hamming", "metric"),
    "no spaces": ("specs", [], "specs"),
    "part temperatures of zero": ("part_temperatures", [0, 0], "part_temperatures"),
    "a part temperature below zero": ("part_temperatures", [-1, 1], "part_temperatures"),
    "three part temperatures": ("part_temperatures", [1, 1, 1], "part_temperatures"),
    "a temperature below zero": ("acceptance.temperature", -1.0, "acceptance.temperature"),
    "a temperature of zero": ("acceptance.temperature", 0, "acceptance.temperature"),
    "a temperature without end": ("acceptance.temperature", float("inf"), "temperature"),
    "a share of two": ("acceptance.share", 2.0, "acceptance.share"),
    "a temperature as text": ("acceptance.temperature", "1", "acceptance.temperature"),
    "heads without number": ("head.num_heads", HUGE, "head"),
    "hidden units without number": ("head.hidden", HUGE, "head"),
    "a head without width": ("head.width", 0, "JSON: head"),
    "a head with a new entry": ("head.n_heads", HUGE, "JSON: head"),
    "columns that are missing": ("encoder.columns", ["x0"], "encoder"),
    "a column of no kind": ("encoder.kinds.x0", "dream", "encoder"),
    "a scale of zero": ("encoder.scale.0", 0.0, "encoder"),
    "a mean too many": ("encoder.mean", [0.0] * 9, "encoder"),
    "a mean of NaN": ("encoder.mean.0", float("nan"), "encoder"),
    "a feature map that is not known": ("features.kind", "cubist", "features.kind"),
    "another feature map": ("features.kind", "whitened", "features"),
    "stages of images": ("stages", [], "stages"),
    "the next row below zero": ("bank.next_id", -1, "bank.next_id"),
    "spaces of the bank": ("bank.spaces", ["nowhere"], "bank"),
    "a stream that goes backwards": ("stream.first", -1, "stream.first"),
    "a stream without a seed": ("stream.seed", None, "stream.seed"),
    "a unit of weights of zero": ("weight_unit", 0.0, "weight_unit"),
    "more columns than there are": ("n_features_in", 9, "rows"),
    "views without number": ("n_views", -1, "n_views"),
    "names of fewer rows": ("row_names", ["a.png"], "row_names"),
    "a correction of one class": (
        "class_correction",
        {"shift": [0.0], "scale": [1.0], "bias": [0.0], "source": "prior", "wanted": None},
        "class_correction",
    ),
    "a ragged transition": (
        "label_model",
        {
            "matrix": [[1.0], [0.5, 0.5]],
            "rate": 0.1,
            "interval": [0.0, 0.2],
            "low": [[0.1]],
            "high": [[0.1]],
            "source": "given",
        },
        "label_model.matrix",
    ),
    "a transition that is a number": ("label_model", 3, "label_model"),
}


def loaded(folder):
    return AttnKNNClassifier.load(folder)


def refused(folder, message):
    with pytest.raises(StoreError, match=message) as caught:
        loaded(folder)
    assert caught.value.reason == "invalid"
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("name", JSON)
def test_an_entry_that_cannot_be_is_named(name, plain_folder, tmp_path):
    path, value, message = JSON[name]
    folder = edited(plain_folder, tmp_path / "m", meta=lambda meta: put(meta, path, value))
    refused(folder, message)


HELD_OUT = {
    "heads without number": ("head.num_heads", HUGE, "head"),
    "a head of an older form": ("n_heads", 1, "n_heads"),
    "views that are merged in no way": ("views.merge", "tossed", "views.merge"),
    "temperatures of zero": ("views.temperatures", [0, 0, 0], "views.temperatures"),
    "views that nothing merges": ("views", None, "views"),
    "a view too many": ("n_views", 3, "views"),
}


@pytest.fixture(scope="module")
def held_out_folder(tmp_path_factory):
    """A saved classifier that held rows out once, and has two views of each."""
    folder, (X, y) = tmp_path_factory.mktemp("held") / "m", blobs()
    model = attn_knn(**CHEAP | {"cv": 0.3}, embedder="identity")
    model.fit(X, y, views=[X + 0.1]).save(folder)
    return folder


@pytest.mark.parametrize("name", HELD_OUT)
def test_an_entry_of_rows_held_out_once_is_named(name, held_out_folder, tmp_path):
    path, value, message = HELD_OUT[name]
    edit = functools.partial(put, path=path, value=value)
    refused(edited(held_out_folder, tmp_path / "m", meta=edit), message)


def leaves(value, path=()):
    """Paths of all entries of a JSON value that hold no others."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, inside in items:
        if isinstance(inside, dict | list) and inside:
            yield from leaves(inside, (*path, str(name)))
        else:
            yield ".".join((*path, str(name)))


WRONG = [None, -1, 0, HUGE, 1e308, float("nan"), "x", "", [], {}, True, [[]], DELETED]


def try_random_edits(folder, target, n, seed):
    """Change one random entry at a time; return how many of the folders were refused."""
    rng = np.random.default_rng(seed)
    paths = [*leaves(read_folder(folder, kind=KIND, newest_version=VERSION).meta)]
    n_refused = 0
    for number in range(n):
        path, value = paths[rng.integers(len(paths))], WRONG[rng.integers(len(WRONG))]
        try:
            change = functools.partial(put, path=path, value=value)
            copy = edited(folder, target / str(number), meta=change)
        except TypeError:  # an entry of a list cannot be deleted
            continue
        try:
            model = loaded(copy)
        except StoreError as error:
            assert error.reason == "invalid", (path, value)
            n_refused += 1
        else:
            assert sums_to_one(model.predict_proba(model._fitted.rows[:5])), (path, value)
    return n_refused


@pytest.mark.parametrize("n", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_random_edits_are_refused_or_harmless(n, based_folder, tmp_path):
    assert try_random_edits(based_folder, tmp_path, n, seed=n) > n // 3


def fill(name, value, at=0):
    def change(tensors):
        tensors[name].reshape(-1)[at] = value

    return change


def replace(name, make):
    def change(tensors):
        tensors[name] = make(tensors[name])

    return change


def drop(prefix):
    def change(tensors):
        for name in [name for name in tensors if name.startswith(prefix)]:
            del tensors[name]

    return change


TENSORS = {
    "labels below zero": (fill("bank/labels", -1), "bank: labels"),
    "labels beyond the classes": (fill("bank/labels", HUGE), "bank: labels"),
    "labels that are not whole": (replace("bank/labels", torch.Tensor.float), "bank: soft labels"),
    "ids below zero": (fill("bank/ids", -7), "bank/ids"),
    "an id twice": (fill("bank/ids", 1), "bank: ids"),
    "a weight of NaN": (fill("bank/sample_weight", np.nan), "bank/sample_weight"),
    "a weight below zero": (fill("bank/sample_weight", -1.0), "bank: sample_weight"),
    "a prior of NaN": (fill("prior", np.nan), "prior"),
    "a prior that sums to two": (replace("prior", lambda t: t * 2), "prior"),
    "a prior of one class": (replace("prior", lambda t: torch.ones(1)), "prior"),
    "a prior of nine classes": (replace("prior", lambda t: torch.full((9,), 1 / 9)), "prior"),
    "a prior of two classes": (replace("prior", lambda t: torch.full((2,), 0.5)), "prior"),
    "keys of NaN": (fill("bank/keys.features", np.nan), "bank/keys.features"),
    "keys with fewer columns": (
        replace("bank/keys.features", lambda t: t[:, :2]),
        "models: features",
    ),
    "keys of fewer rows": (replace("bank/keys.features", lambda t: t[:5]), "bank"),
    "folds that are not there": (fill("bank/columns.fold", 99), "columns.fold"),
    "head weights of NaN": (fill("head/space.bias", np.nan), "head/space.bias"),
    "half a head": (drop("head/layers"), "head"),
    "no head": (drop("head/"), "head"),
    "head weights of another type": (replace("head/space.bias", torch.Tensor.double), "head"),
    "no tensors at all": (drop(""), "prior"),
    "no rows": (drop("rows"), "rows"),
    "fewer rows": (replace("rows", lambda t: t[:5]), "rows"),
    "no feature map": (replace("bank/keys.features", lambda t: t.long()), "bank"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_that_cannot_be_is_named(name, plain_folder, tmp_path):
    change, message = TENSORS[name]
    refused(edited(plain_folder, tmp_path / "m", tensors=change), message)


BASE_TENSORS = {
    "a model is missing": (drop("base/logistic/1"), "base/logistic/1"),
    "a child beyond the end": (fill("base/extra-trees/0/left", 5_000_000), "later node"),
    "a child that is its parent": (fill("base/extra-trees/0/left", 0), "later node"),
    "a column of no row": (fill("base/extra-trees/0/feature", 2**30), "splits by a column"),
    "a forest is missing": (drop("base/extra-trees/0"), "base/extra-trees/0"),
    "coefficients of NaN": (fill("base/logistic/0/coef", np.nan), "NaN or infinity"),
    "a class that is not there": (fill("base/logistic/0/classes", 7, at=-1), "classes"),
    "other columns": (replace("base/logistic/0/coef", lambda t: t[:, :2]), "models: "),
    "quantiles that descend": (fill("features/quantiles", 1e9), "features"),
}


@pytest.mark.parametrize("name", BASE_TENSORS)
def test_a_base_that_cannot_be_is_named(name, based_folder, tmp_path):
    change, message = BASE_TENSORS[name]
    if name == "quantiles that descend":
        X, y = blobs()
        model = attn_knn(**CHEAP).fit(np.exp(X), y)
        model._predictor.row_models.features.kind = "quantile"
        encoder = model._predictor.encoder
        model._predictor.row_models.features.fit(encoder, encoder.transform(np.exp(X)))
        model._predictor.row_models.features.state.pop("scale", None)
        model.save(based_folder := tmp_path / "quantile")
    refused(edited(based_folder, tmp_path / "m", tensors=change), message)


def test_a_base_of_more_classes_than_the_model_is_refused(based_folder, tmp_path):
    for number, n_classes in enumerate((HUGE, 4)):
        edit = functools.partial(put, path="base.n_classes", value=n_classes)
        refused(edited(based_folder, tmp_path / str(number), meta=edit), "base.n_classes")


def test_rows_of_another_table_are_refused(based_folder, tmp_path):
    def unpack_to_much(found):
        stream = io.BytesIO()
        pd.DataFrame({"age": np.zeros(3_000_000), "income": 0.0, "town": "Rome"}).to_parquet(stream)
        found["rows"] = stream.getvalue()

    refused(edited(based_folder, tmp_path / "m", blobs=unpack_to_much), "rows: there are 3000000")
    refused(edited(based_folder, tmp_path / "n", blobs=lambda b: b.update(rows=b"PAR1")), "rows")
    refused(edited(based_folder, tmp_path / "o", blobs=lambda b: b.pop("rows") and None), "rows")


INDEXED = {"index_columns": ["age"], "columns": [], "column_indexes": []}
PARQUET = {
    "lists": lambda table: table.set_column(0, "age", pa.array([[1.0]] * len(table))),
    "structures": lambda table: table.set_column(0, "age", pa.array([{"a": 1}] * len(table))),
    "text that is no UTF-8": lambda table: table.set_column(
        2, "town", pa.array([b"\xff\xfe"] * len(table)).view(pa.string())
    ),
    "two columns of one name": lambda table: table.rename_columns(["age", "age", "town"]),
    "a column that is an index": lambda table: table.replace_schema_metadata(
        {"pandas": json.dumps(INDEXED)}
    ),
    "an index that is no JSON": lambda table: table.replace_schema_metadata({"pandas": "{"}),
}


@pytest.mark.parametrize("name", PARQUET)
def test_rows_of_types_that_nearwise_never_stores_are_refused(name, based_folder, tmp_path):
    def change(found):
        stream = io.BytesIO()
        pq.write_table(PARQUET[name](pq.read_table(io.BytesIO(found["rows"]))), stream)
        found["rows"] = stream.getvalue()

    refused(edited(based_folder, tmp_path / "m", blobs=change), "rows")


def header(text):
    def change(path):
        data = text.encode()
        path.write_bytes(len(data).to_bytes(8, "little") + data)

    return change


SAFETENSORS = {
    "a header without end": lambda path: path.write_bytes((2**40).to_bytes(8, "little") + b"{}"),
    "a shape beyond the file": header(
        '{"prior":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}'
    ),
    "a header that is not JSON": header("{"),
    "an empty file": lambda path: path.write_bytes(b""),
    "an empty shape that is huge": header(
        '{"prior":{"dtype":"F32","shape":[1000000000000,0],"data_offsets":[0,0]}}'
    ),
}


@pytest.mark.parametrize("name", SAFETENSORS)
def test_tensor_files_that_lie_about_their_size_are_refused(name, plain_folder, tmp_path):
    folder = copied(plain_folder, tmp_path / "m")
    path = next(folder.glob("tensors-*"))
    SAFETENSORS[name](path)
    content, manifest = path.read_bytes(), json.loads((folder / "manifest.json").read_text())
    digest = hashlib.sha256(content).hexdigest()
    manifest["files"]["tensors"] |= {"size": len(content), "sha256": digest}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match=r"torn|prior"):
        loaded(folder)


@pytest.fixture(scope="module")
def own_base_folder(tmp_path_factory):
    """A saved classifier with a base of the user's own, which skops keeps."""
    folder = tmp_path_factory.mktemp("own") / "m"
    X, y = blobs()
    attn_knn(**{**CHEAP, "estimator": GaussianNB()}).fit(X, y).save(folder)
    return folder


def archive(schema, files=None):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in {"schema.json": schema, **(files or {})}.items():
            file.writestr(name, content)
    return stream.getvalue()


def unzipped(blob):
    with zipfile.ZipFile(io.BytesIO(blob)) as file:
        return [(name, file.read(name)) for name in file.namelist()]


class Runs:
    """What a pickle may do: write a file when it is loaded."""

    def __reduce__(self):
        return open, ("was-run", "w")


# Made by the test, for the last one takes a second and 300 MB.
BLOBS = {
    "a pickle": (lambda: pickle.dumps(Runs()), "was not written with skops"),
    "nothing": (bytes, "was not written with skops"),
    "an empty archive": (lambda: archive("{}"), "base/GaussianNB/0"),
    "a schema that is not JSON": (lambda: archive("["), "base/GaussianNB/0"),
    "a schema nested deeply": (lambda: archive("[" * 100_000), "base/GaussianNB/0"),
    "a schema of other types": (
        lambda: archive('{"protocol": 2, "content": 5}'),
        "base/GaussianNB/0",
    ),
    "an archive that unpacks to 300 MB": (lambda: archive(" " * 300_000_000), "would unpack to"),
}


@pytest.mark.parametrize("name", BLOBS)
def test_a_stored_base_that_skops_never_writes_is_refused(
    name, own_base_folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    make, message = BLOBS[name]
    change = {"base/GaussianNB/0": make()}
    refused(edited(own_base_folder, tmp_path / "m", blobs=lambda b: b.update(change)), message)
    assert not (tmp_path / "was-run").exists()


TYPES = {
    "a process": ("subprocess", "Popen"),
    "a function of the system": ("os", "system"),
    "support vectors, read by C": ("sklearn.svm._classes", "SVC"),
}


@pytest.mark.parametrize("name", TYPES)
def test_types_that_nobody_trusts_are_refused_by_name(name, own_base_folder, tmp_path):
    module, kind = TYPES[name]

    def forge(found):
        for part, blob in found.items():
            if part.startswith("base/"):
                files = dict(unzipped(blob))
                schema = json.loads(files.pop("schema.json"))
                schema |= {"__module__": module, "__class__": kind}
                found[part] = archive(json.dumps(schema), files)

    folder = edited(own_base_folder, tmp_path / "m", blobs=forge)
    with pytest.raises(ValueError, match=f"{module}.{kind}.*not trusted.*trusted="):
        loaded(folder)


def test_a_base_of_another_model_is_refused(own_base_folder, tmp_path):
    X, y = blobs(n_features=7)
    other = attn_knn(**{**CHEAP, "estimator": GaussianNB()}).fit(X, y)
    other.save(tmp_path / "other")
    theirs = read_folder(tmp_path / "other", kind=KIND, newest_version=VERSION).blobs
    refused(edited(own_base_folder, tmp_path / "m", blobs=lambda b: b.update(theirs)), "models: ")


def test_a_network_that_asks_for_more_memory_than_there_is_is_refused(tmp_path):
    X, y = blobs()
    settings = {**CHEAP, "train": {"epochs": 1}, "embedder": "table"}
    attn_knn(**settings).fit(X, y).save(tmp_path / "m")
    for number, (path, value) in enumerate(
        {
            "embedding.networks.0.embedder.dim": HUGE,
            "embedding.networks.0.embedder.n_numeric": HUGE,
            "embedding.networks.0.embedder.kind": "novel",
            "embedding.networks.0.head": True,
            "embedding.networks": [],
        }.items()
    ):
        folder = edited(
            tmp_path / "m",
            tmp_path / str(number),
            meta=lambda meta, path=path, value=value: put(meta, path, value),
        )
        refused(folder, r"network/0|embedding\.networks")
