"""Sparse rows of commands, from files whose columns have numbers instead of names."""

from typing import TYPE_CHECKING, Any

from nearwise.cli.console import say
from nearwise.cli.options import ReadOptions, refuse

if TYPE_CHECKING:
    import pandas as pd
    from scipy import sparse

_WRITE = "Write svmlight: sklearn.datasets.dump_svmlight_file(X, y, 'rows.svmlight')"

_NOTHING = 1e-12  # largest share of a column that was empty in the fit; an SVD leaves rounding
_UNLIKELY = 1e-4  # chance below which a column 0 of values was not left out by the sample


def labelled_sparse(
    data: str, options: ReadOptions, model: Any = None, **of_tables: object
) -> "tuple[sparse.csr_array, pd.Series]":
    """Read sparse rows and labels, of the columns of a model if there is one.

    ValueError for an option of tables, or a file without labels.
    """
    import pandas as pd

    X, y = _read(data, options, model, of_tables)
    if y is None:
        raise ValueError(f"{data} holds a sparse matrix without labels. {_WRITE}.")
    labels = pd.Series(y, name="target")
    if labels.isna().any():
        raise ValueError(f"{data}: the label of row {int(labels.isna().argmax())} is not a number.")
    return X, labels


def sparse_like(
    model: Any, data: str, options: ReadOptions, **of_tables: object
) -> "sparse.csr_array":
    """Read sparse rows of the columns of a model; labels are not used."""
    return _read(data, options, model, of_tables)[0]


def refuse_names(model: Any, name: object, data: str) -> None:
    """Raise ValueError for a sparse file if the model's columns have names, and the reverse."""
    from nearwise.data.tables.sparse_files import SUFFIXES, is_sparse_file

    has_names = model.fitted_.columns.names is not None
    if is_sparse_file(data) and has_names:
        raise ValueError(
            f"{name} was fitted on a table whose columns have names, and {data} is a sparse file. "
            "Give a table."
        )
    if not (is_sparse_file(data) or has_names):
        raise ValueError(
            f"{name} was fitted on columns without names: give a sparse file ({', '.join(SUFFIXES)}"
            ", or .npz of scipy.sparse.save_npz), or use it in Python."
        )


def _read(data: str, options: ReadOptions, model: Any, of_tables: dict[str, object]) -> Any:
    from nearwise.data.tables.sparse_files import read_sparse

    options.refuse_of_images(f"{data} is a sparse file")
    of_tables |= {"header" if options.header else "no_header": options.header is not None}
    of_tables |= {"sheet": options.sheet, "skip_unlabelled": options.skip_unlabelled}
    given = {name: value or None for name, value in of_tables.items()}
    refuse(f"is about a table with names of columns; {data} is a sparse file", given)
    X, y = read_sparse(data)
    if model is None:
        return X, y
    known, n_found = model.n_features_in_, X.shape[1]
    if y is None and n_found != known:
        raise ValueError(
            f"{data} has {n_found} columns, and the model was fitted on {known}. Columns count "
            "from 0; a model of a svmlight file that counts from 1 has an empty column 0."
        )
    if n_found > known and not options.quiet:
        unknown = X.indices[X.indices >= known]
        say(
            f"note: {data}: the model has the columns 0 to {known - 1}; {len(unknown)} values of "
            f"others are ignored, first of column {unknown.min()}."
        )
    X.resize((X.shape[0], known))
    if n_found <= known and not options.quiet and _seems_shifted(model.fitted_, X):
        say(
            f"note: {data}: column 0 was empty in the fit, and has values in {X[:, [0]].nnz} of "
            f"{X.shape[0]} rows here. If the file of the fit counts from 1, and this one from 0, "
            "write this one again: dump_svmlight_file(..., zero_based=False)."
        )
    return X, y


def _seems_shifted(fitted: Any, X: "sparse.csr_array") -> bool:
    """Whether rows seem to count columns from 0, and the fit from 1.

    Column 0 is empty in the fit, and the last one is empty here. Column 0 has values in too many
    rows to be as rare here as in the fit: c of m new rows and none of n known ones, though each row
    with a value is a new one by a chance of m / (n + m).
    """
    components = fitted.predictor.encoder.sparse_columns
    if components is None or abs(components.axes[0]).max() >= _NOTHING:
        return False
    n, m = len(fitted.bank), X.shape[0]
    by_chance = (m / (n + m)) ** X[:, [0]].nnz
    return bool(by_chance < _UNLIKELY and not X[:, [-1]].nnz)
