"""TextColumn: words and character n-grams of a column of text, and vectors of an embedder."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from nearwise.cached import cached_property
from nearwise.data.tables.words import is_text
from nearwise.estimators.inputs.text_vectors import Embed, TextEmbedder, TextVectors

N_COMPONENTS = 256  # of all columns of text together; parts of the table beside its numbers
_MOST_TERMS = 20_000  # most frequent words, and as many n-grams
_N_TERMS = 2  # rows that a term must be in, of 100 rows or more
_TELLING = 3  # letters of a sequence that many unrelated words do not share
_FEWEST_CELLS, _MANY_CELLS = 20, 100  # distinct texts: fewest, and enough even if they repeat
_KINDS: dict[str, dict[str, Any]] = {
    "words": {"token_pattern": r"(?u)\b\w+\b"},
    "ngrams": {"analyzer": "char_wb", "ngram_range": (2, 4)},
}


def holds_text(values: Iterable[Any], counts: Sequence[int]) -> bool:
    """Whether distinct values of a column, with their cells, are mostly several words."""
    held = list(values)
    n_cells = sum(counts)
    if len(held) < _FEWEST_CELLS or (len(held) < _MANY_CELLS and 2 * len(held) < n_cells):
        return False
    several = (is_text(v) for v in held)
    return 2 * sum(n for n, has_words in zip(counts, several, strict=True) if has_words) >= n_cells


class TextColumn:
    """Terms of a column of text, and components that many of them share.

    The terms of a text are its words and the character n-grams (2 to 4) of its words, weighted by
    TF-IDF, each kind of unit length (Salton and Buckley 1988). The components are a truncated SVD
    of the terms (Deerwester et al. 1990), computed row by row, so that equal texts get equal ones.
    Components of an embedder's vectors, if there is one, follow them and vary as much in all.

    Attributes
    ----------
    vocabulary : dict of str to list of str
        The "words" and the "ngrams".
    idf : float32 ndarray of shape (n_terms,)
        Inverse document frequencies, of the words first.
    axes : float32 ndarray of shape (n_terms, n_components)
        From terms to their components.
    vectors : TextVectors or None
    """

    def __init__(
        self,
        vocabulary: dict[str, list[str]],
        idf: np.ndarray,
        axes: np.ndarray | None,
        vectors: TextVectors | None = None,
    ) -> None:
        self.vocabulary, self.idf, self.vectors = vocabulary, idf, vectors
        sizes = [len(vocabulary[kind]) for kind in _KINDS]
        if idf.shape != (sum(sizes),) or not (np.isfinite(idf).all() and (idf > 0).all()):
            raise ValueError(f"idf does not fit the {sum(sizes)} terms")
        parts = np.split(idf, np.cumsum(sizes)[:-1])
        self._readers = []
        for (kind, options), of_kind in zip(_KINDS.items(), parts, strict=True):
            if len(of_kind):
                reader = TfidfVectorizer(
                    vocabulary=vocabulary[kind], sublinear_tf=True, dtype=np.float32, **options
                )
                reader.idf_ = of_kind  # ValueError if a term occurs twice
                self._readers.append(reader)
        self.axes = axes if axes is not None else np.zeros((sum(sizes), 0), np.float32)
        if self.axes.ndim != 2 or len(self.axes) != sum(sizes) or not np.isfinite(self.axes).all():
            raise ValueError(f"axes have shape {self.axes.shape} for {sum(sizes)} terms")

    @classmethod
    def fit(
        cls, texts: pd.Series, n_components: int = N_COMPONENTS, embed: str | Embed | None = None
    ) -> tuple["TextColumn", sparse.csr_matrix]:
        """Fit to the texts of the training rows; also returns their terms.

        `embed` is the folder of a model, or a function from texts to vectors.
        """
        known = [text for text in _plain(texts) if text]
        least = _N_TERMS if len(known) >= _MANY_CELLS else 1
        vocabulary: dict[str, list[str]] = {}
        idf: list[np.ndarray] = []
        for kind, options in _KINDS.items():
            reader = TfidfVectorizer(
                sublinear_tf=True,
                min_df=least,
                max_features=_MOST_TERMS,
                dtype=np.float32,
                **options,
            )
            try:
                reader.fit(known)
            except ValueError:  # no term is left: texts of punctuation, or all different
                vocabulary[kind] = []
                continue
            vocabulary[kind] = reader.get_feature_names_out().tolist()
            idf.append(reader.idf_.astype(np.float32))
        joined = np.concatenate(idf) if idf else np.zeros(0, np.float32)
        terms = cls(vocabulary, joined, None).terms(texts)
        most = min(n_components, max(1, terms.shape[0] // 2))
        n = min(most, terms.shape[1] - 1)
        if n < 1:
            axes = np.zeros((terms.shape[1], 1), np.float32)
        else:
            axes = TruncatedSVD(n, random_state=0).fit(terms).components_.T.astype(np.float32)
        found = cls(vocabulary, joined, np.ascontiguousarray(axes))
        if embed is not None:
            variance = float((terms @ axes).var(axis=0).sum())
            embedder = TextEmbedder(embed)
            found.vectors = TextVectors.fit(embedder, known or [""], most, variance)
        return found, terms

    def to_json(self) -> dict[str, Any]:
        """Terms, number of components and embedder, as plain data for JSON.

        ValueError if the embedder is a function, which a folder cannot hold.
        """
        if self.vectors is None:
            return self.vocabulary | {"n_components": self.n_components}
        embedder = self.vectors.embedder
        if embedder.folder is None:
            raise ValueError(
                "A function that embeds texts cannot be saved. Give a local folder of model2vec or "
                "sentence-transformers (columns={...: 'text:FOLDER'}), or fit to its vectors as "
                "columns of numbers."
            )
        stored = {"folder": embedder.folder, "sha256": embedder.sha256}
        return self.vocabulary | {"n_components": self.n_components, "embedder": stored}

    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays of the column by name."""
        own = {"idf": self.idf, "axes": self.axes}
        if self.vectors is None:
            return own
        return own | {"center": self.vectors.center, "turn": self.vectors.turn}

    @classmethod
    def from_json(cls, state: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> "TextColumn":
        """Rebuild a column from the results of `to_json` and `arrays`.

        ValueError or KeyError if they do not fit; EmbedderError or ImportError without the
        embedder.
        """
        for name, array in arrays.items():
            if array.dtype != np.float32:
                raise ValueError(f"{name} is {array.dtype}")
        vectors = None
        if (stored := state.get("embedder")) is not None:
            embedder = TextEmbedder(stored["folder"], stored["sha256"])
            vectors = TextVectors(embedder, arrays["center"], arrays["turn"])
        vocabulary = {kind: state[kind] for kind in _KINDS}
        found = cls(vocabulary, arrays["idf"], arrays["axes"], vectors)
        if found.n_components != state["n_components"]:
            raise ValueError(f"{found.n_components} components of {state['n_components']}")
        return found

    @property
    def n_components(self) -> int:
        """Number of components, of terms and vectors."""
        of_vectors = 0 if self.vectors is None else self.vectors.turn.shape[1]
        return int(self.axes.shape[1] + of_vectors)

    def terms(self, texts: pd.Series) -> sparse.csr_matrix:
        """Weights of the terms, float32 (n, n_terms); none for a missing text."""
        plain = _plain(texts)
        if not self._readers:
            return sparse.csr_matrix((len(plain), 0), dtype=np.float32)
        parts = [reader.transform(plain) for reader in self._readers]
        return sparse.hstack(parts, format="csr", dtype=np.float32)

    def n_strange(self, texts: pd.Series, terms: sparse.csr_matrix) -> int:
        """Count texts with no known word and no known sequence of three characters.

        A missing text is not counted. None is if an embedder reads the texts, too, or no term is
        known at all.
        """
        if self.vectors is not None or not terms.shape[1]:
            return 0
        strange = (terms @ self._is_telling == 0) & texts.notna().to_numpy()
        return int(strange.sum())

    @cached_property
    def _is_telling(self) -> np.ndarray:
        """Whether terms are words or have three characters besides blanks, float32 (n_terms,)."""
        sequences = [len(term.strip()) >= _TELLING for term in self.vocabulary["ngrams"]]
        return np.array([True] * len(self.vocabulary["words"]) + sequences, dtype=np.float32)

    def components(self, texts: pd.Series, terms: sparse.csr_matrix) -> np.ndarray:
        """Components, float64 (n, n_components); NaN for a missing text."""
        found = (terms @ self.axes).astype(np.float64)
        if self.vectors is not None:
            found = np.hstack([found, self.vectors(_plain(texts))])
        found[texts.isna().to_numpy()] = np.nan
        return found


def _plain(texts: pd.Series) -> list[str]:
    return ["" if missing else str(text) for text, missing in zip(texts, texts.isna(), strict=True)]
