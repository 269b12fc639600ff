"""Model folders for the tests of the store: made once, copied, and damaged."""

import json
import shutil
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd

from nearwise.estimators.fit import pipeline
from nearwise.estimators.storage.class_parts import KIND
from nearwise.estimators.storage.persistence import VERSION
from nearwise.memory import read_folder, write_folder
from nearwise.memory.store import MANIFEST
from tests.estimators.cases import CHEAP, QUICK, attn_knn, blobs, quietly


def small_table(n=48, seed=0):
    """Numbers, gaps and a category that tells the classes apart in part."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    frame = pd.DataFrame(
        {
            "age": y * 1.5 + rng.normal(size=n),
            "income": np.where(rng.random(n) < 0.2, np.nan, y + rng.normal(size=n)),
            "town": np.where(y == 1, rng.choice(["Rome", "Oslo"], n), "Lima"),
        }
    )
    return frame, np.array(["no", "yes"])[y]


def plain_model():
    """A classifier without a base."""
    X, y = blobs()
    return attn_knn(**CHEAP).fit(X, y)


def based_model():
    """A classifier whose base has a logistic regression and a forest."""
    X, _ = small_table(seed=2)
    y = (X["age"] + X["income"].fillna(0) > 1).to_numpy()
    with quietly():
        few = partial(pipeline.auto_candidates, light=True)
        with patch.object(pipeline, "auto_candidates", few):
            model = attn_knn(cv=2, **QUICK).fit(X, np.where(y, "yes", "no"))
    names = {one.name for one in model._predictor.row_models.base.candidates}
    assert names == {"logistic", "extra-trees"}
    return model


def saved_pair(root: Path) -> Path:
    """Save a model of arrays and one of a table with a base, as "arrays" and "table"."""
    plain_model().save(root / "arrays")
    based_model().save(root / "table")
    return root


def copied(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target)
    return target


def edited(folder: Path, target: Path, *, meta=None, tensors=None, blobs=None) -> Path:
    """Copy a model folder, change its content, and seal it again with right checksums.

    Each of `meta`, `tensors` and `blobs` is called with the content and changes it in place.
    """
    content = read_folder(folder, kind=KIND, newest_version=VERSION)
    for change, part in ((meta, content.meta), (tensors, content.tensors), (blobs, content.blobs)):
        if change is not None:
            change(part)
    write_folder(
        target,
        kind=KIND,
        format_version=VERSION,
        tensors=content.tensors,
        meta=content.meta,
        blobs=content.blobs,
    )
    return target


def with_manifest(folder: Path, change) -> Path:
    """Change the manifest of a folder; `change` takes the parsed one and gives the new text."""
    manifest = json.loads((folder / MANIFEST).read_text())
    new = change(manifest)
    (folder / MANIFEST).write_text(new if isinstance(new, str) else json.dumps(new or manifest))
    return folder


def put(content, path, value):
    """Set ``content[a][b]...`` for the path "a.b"; delete it where `value` is DELETED."""
    *parents, last = path.split(".")
    for name in parents:
        content = content[int(name) if isinstance(content, list) else name]
    if value is DELETED:
        del content[last]
    else:
        content[int(last) if isinstance(content, list) else last] = value


DELETED = object()
