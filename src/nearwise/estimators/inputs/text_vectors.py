"""Vectors of texts by a function, or by a local folder of model2vec or sentence-transformers."""

import hashlib
import json
from collections.abc import Callable
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

Embed = Callable[[list[str]], Any]  # n texts to an array (n, d)
FOLDER = "text:"  # start of a wish that names a folder
_MOST_FILES = 200  # of the folder of a model
_RUNS_CODE = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".py", ".so", ".dll")
_FLAT = 1e-12  # a smaller variance is none


class EmbedderError(OSError):
    """The folder of a text model is missing, changed, or not a model that can be read."""


class TextEmbedder:
    """Vectors of texts, with a check of what comes back.

    Parameters
    ----------
    source : str or callable
        Local folder of a model2vec or sentence-transformers model, or a function from n texts to an
        array (n, d).
    sha256 : str, optional
        Digest that the files of the folder must have.

    Attributes
    ----------
    folder : str or None
        None for a function.
    sha256 : str
        Digest of the folder's files; "" for a function.

    Raises
    ------
    EmbedderError
        If there is no such folder, or its files are others.
    ImportError
        If the package that reads the folder is not installed.
    """

    def __init__(self, source: str | Embed, sha256: str | None = None) -> None:
        self.folder, self.sha256 = None, ""
        if not isinstance(source, str):
            self._embed = source
            return
        self.folder, self.sha256 = source, digest_of(source)
        if sha256 not in (None, self.sha256):
            raise EmbedderError(
                f"The files of {source} changed since the model was fitted: their sha256 is "
                f"{self.sha256}, not {sha256}. Restore them, or fit again."
            )
        self._embed = _opened(source, self.sha256)

    def __call__(self, texts: list[str]) -> np.ndarray:
        """Vectors (n, d) of n texts, float64; equal texts get equal ones."""
        distinct = list(dict.fromkeys(texts))
        found = np.asarray(self._embed(distinct))
        fits = found.ndim == 2 and len(found) == len(distinct) and found.dtype.kind in "fiu"
        if not fits or not found.shape[1] or not np.isfinite(found).all():
            raise ValueError(
                f"An embedder of texts returned {found.dtype} of shape {found.shape} for "
                f"{len(distinct)} texts. It must return finite numbers of shape (n_texts, width)."
            )
        position = {text: at for at, text in enumerate(distinct)}
        vectors: np.ndarray = found[[position[text] for text in texts]].astype(np.float64)
        return vectors


class TextVectors:
    """Principal components of the vectors of an embedder.

    Attributes
    ----------
    embedder : TextEmbedder
    center : float32 ndarray of shape (d,)
    turn : float32 ndarray of shape (d, n_components)
        From centered vectors to components.
    """

    def __init__(self, embedder: TextEmbedder, center: np.ndarray, turn: np.ndarray) -> None:
        self.embedder, self.center, self.turn = embedder, center, turn
        if center.ndim != 1 or turn.ndim != 2 or len(turn) != len(center) or not turn.shape[1]:
            raise ValueError(f"center {center.shape} does not fit turn {turn.shape}")
        if not (np.isfinite(center).all() and np.isfinite(turn).all()):
            raise ValueError("center or turn holds NaN or infinity")

    @classmethod
    def fit(
        cls, embedder: TextEmbedder, texts: list[str], n_components: int, variance: float
    ) -> "TextVectors":
        """Fit to texts; the variance of all components together is `variance`."""
        vectors = embedder(texts)
        center = vectors.mean(axis=0)
        values, axes = np.linalg.eigh(np.atleast_2d(np.cov(vectors, rowvar=False, bias=True)))
        kept = slice(-min(n_components, len(values)), None)
        total = float(values[kept].sum())
        scale = np.sqrt(variance / total) if min(total, variance) > _FLAT else 1.0
        turn = np.ascontiguousarray(axes[:, kept][:, ::-1] * scale)
        return cls(embedder, center.astype(np.float32), turn.astype(np.float32))

    def __call__(self, texts: list[str]) -> np.ndarray:
        """Components (n, n_components) of n texts, float64."""
        if not texts:
            return np.zeros((0, self.turn.shape[1]))
        vectors = self.embedder(texts)
        if vectors.shape[1] != len(self.center):
            raise ValueError(
                f"An embedder of texts returned vectors of {vectors.shape[1]} numbers, and of "
                f"{len(self.center)} in the fit. Give the embedder of the fit."
            )
        components: np.ndarray = (vectors - self.center) @ self.turn.astype(np.float64)
        return components


def kind_of_folder(folder: str) -> str:
    """Package that reads a folder: "model2vec" or "sentence_transformers".

    EmbedderError if there is no folder, it holds no such model, or its files could run code.
    """
    path = Path(folder)
    if not path.is_dir():
        raise EmbedderError(
            f"The model of texts {folder} is not a folder here. Put it there, or fit again."
        )
    odd = next((one.name for one in _files(path) if one.suffix in _RUNS_CODE), None)
    if odd is not None:
        raise EmbedderError(
            f"{folder} holds {odd}, which can run code when it is read. Save the model with "
            "safetensors, without code of its own."
        )
    modules, config = _json(path / "modules.json"), _json(path / "config.json")
    if isinstance(config, dict) and (
        config.get("model_type") == "model2vec" or "embedding_dtype" in config
    ):
        return "model2vec"
    types = [str(one.get("type")) for one in modules or [] if isinstance(one, dict)]
    if types and all(name.startswith("sentence_transformers.") for name in types):
        return "sentence_transformers"
    raise EmbedderError(
        f"{folder} holds no model of texts that is known. Give a folder saved by model2vec or "
        "sentence-transformers, or a function from texts to vectors."
    )


def digest_of(folder: str) -> str:
    """sha256 of the names and contents of a model's files; EmbedderError as `kind_of_folder`."""
    kind_of_folder(folder)
    digest = hashlib.sha256()
    for path in sorted(_files(Path(folder))):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(folder).as_posix()}\n{content}\n".encode())
    return digest.hexdigest()


def _files(folder: Path) -> list[Path]:
    """All files of a folder; EmbedderError for more than a model has."""
    found = list(islice((path for path in folder.rglob("*") if path.is_file()), _MOST_FILES + 1))
    if len(found) > _MOST_FILES:
        raise EmbedderError(f"{folder} holds more than {_MOST_FILES} files, as no model does.")
    return found


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


@lru_cache(maxsize=2)
def _opened(folder: str, sha256: str) -> Embed:
    """Open a folder; the digest tells states of a folder apart."""
    if kind_of_folder(folder) == "model2vec":
        try:
            from model2vec import StaticModel
        except ImportError as error:
            raise ImportError(f"{folder} needs model2vec: pip install model2vec") from error
        static = StaticModel.from_pretrained(folder)
        return lambda texts: static.encode(texts, use_multiprocessing=False)
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ImportError(
            f"{folder} needs sentence-transformers: pip install sentence-transformers"
        ) from error
    model = SentenceTransformer(folder, local_files_only=True)
    return lambda texts: model.encode(texts, show_progress_bar=False)
