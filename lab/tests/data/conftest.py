"""Tiny files in the formats of the real ones, and a machine without data of its own."""

import numpy as np
import pytest

from tests.data.cases import pixels, write_mnist, write_shard

ADULT_ROWS = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
    "Male, 2174, 0, 40, United-States, <=50K\n"
    "50, ?, 83311, Bachelors, 13, Married-civ-spouse, ?, Husband, White, "
    "Male, 0, 0, 13, ?, >50K\n\n"
)
ADULT_TEST_ROWS = (
    "|1x3 Cross validator\n"
    "25, Private, 226802, 11th, 7, Never-married, Machine-op-inspct, Own-child, Black, "
    "Male, 0, 0, 40, United-States, <=50K.\n"
    "44, Private, 160323, Some-college, 10, Married-civ-spouse, Machine-op-inspct, Husband, Black, "
    "Male, 7688, 0, 40, United-States, >50K.\n\n"
)
WINE_HEADER = (
    '"fixed acidity";"volatile acidity";"citric acid";"residual sugar";"chlorides";'
    '"free sulfur dioxide";"total sulfur dioxide";"density";"pH";"sulphates";"alcohol";"quality"\n'
)
# the third row repeats the features of the first with another quality
WINE_ROWS = (
    "7.4;0.7;0;1.9;0.076;11;34;0.9978;3.51;0.56;9.4;5\n"
    "7.8;0.88;0;2.6;0.098;25;67;0.9968;3.2;0.68;9.8;6\n"
    "7.4;0.7;0;1.9;0.076;11;34;0.9978;3.51;0.56;9.4;7\n"
    "11.2;0.28;0.56;1.9;0.075;17;60;0.998;3.16;0.58;9.8;6\n"
)


@pytest.fixture(autouse=True)
def bare_machine(tmp_path, monkeypatch):
    """No data root, an empty cache, and no proxy between a test and its own server."""
    monkeypatch.delenv("NEARWISE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def data_root(tmp_path):
    """A data root with a few rows of every registered file."""
    root = tmp_path / "root"
    rng = np.random.default_rng(0)
    files = {
        "adult/adult.data": ADULT_ROWS,
        "adult/adult.test": ADULT_TEST_ROWS,
        "wine-quality/winequality-red.csv": WINE_HEADER + WINE_ROWS,
        "wine-quality/winequality-white.csv": WINE_HEADER + WINE_ROWS,
        "tabular/letter-recognition.data": "T,2,8,3,5,1,8,13,0,6,6,10,8,0,8,0,8\n"
        "I,5,12,3,7,2,10,5,5,4,13,3,9,2,8,4,10\n",
        "tabular/magic04.data": "28.7967,16.0021,2.6449,0.3918,0.1982,27.7004,22.011,-8.2027,"
        "40.092,81.8828,g\n31.6036,11.7235,2.5185,0.5303,0.3773,26.2722,23.8238,-9.9574,6.3609,"
        "205.261,h\n",
        "tabular/ionosphere.csv": ",".join(["0.5"] * 34) + ",g\n" + ",".join(["-1"] * 34) + ",b",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "cifar10-features").mkdir()
    arrays = {
        name: rng.normal(size=(rows, 5)).astype(np.float16)
        for name, rows in {"train": 6, "train_flip": 6, "test": 3, "test_flip": 3}.items()
    }
    np.savez(
        root / "cifar10-features" / "squeezenet_pca192.npz",
        train_label=np.array([0, 1, 2, 0, 1, 2]),
        test_label=np.array([2, 0, 1]),
        **arrays,
    )
    for name, label in (("cifar10", "label"), ("cifar100", "fine_label")):
        for part, n in (("train", 12), ("test", 5)):
            path = root / name / f"{part}-00000-of-00001.parquet"
            write_shard(path, pixels(n, seed=n), range(n % 10), label=label)
    write_mnist(root / "mnist", n_train=6, n_test=4)
    return root
