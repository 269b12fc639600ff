"""Preprocessing of raw tables and arrays for the baselines, fitted on the training part only."""

from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.validation import check_is_fitted

Table = pd.DataFrame | np.ndarray

MISSING_CATEGORY = "(missing)"
MAX_ONE_HOT = 64
MAX_NATIVE = 250  # scikit-learn's boosting takes at most 255 categories per column


def take_rows(X: Table, rows: np.ndarray) -> Table:
    """Rows of a table or an array by their positions."""
    return X.iloc[rows] if isinstance(X, pd.DataFrame) else X[rows]


def column_kinds(X: pd.DataFrame) -> tuple[list[Any], list[Any]]:
    """Split the columns of a table into numeric (booleans too) and categorical names, in order."""
    numeric = [c for c in X.columns if pd.api.types.is_numeric_dtype(X[c])]
    return numeric, [c for c in X.columns if c not in numeric]


def _numbers(X: pd.DataFrame, columns: list[Any]) -> pd.DataFrame:
    """Plain float64 columns, every missing marker as NaN."""
    return pd.DataFrame(
        {c: pd.to_numeric(X[c]).to_numpy(dtype=np.float64, na_value=np.nan) for c in columns},
        index=X.index,
    )


def _texts(X: pd.DataFrame, columns: list[Any]) -> pd.DataFrame:
    """Plain string columns, missing entries as their own category."""
    texts = {}
    for c in columns:
        column = X[c].astype(object)
        texts[c] = column.where(column.notna(), MISSING_CATEGORY).map(str)
    return pd.DataFrame(texts, index=X.index).astype(object)


class OverallScaler(TransformerMixin, BaseEstimator):
    """Centre columns and divide all of them by the root of their mean variance."""

    def fit(self, X: np.ndarray, y: Any = None) -> Self:
        """Learn the means and the one scale."""
        self.mean_ = X.mean(axis=0)
        self.scale_ = float(np.sqrt(X.var(axis=0).mean())) or 1.0
        return self

    def transform(self, X: np.ndarray) -> np.ndarray:
        """Scale rows of shape (n_rows, n_columns)."""
        return (X - self.mean_) / self.scale_


class FeatureEncoder(TransformerMixin, BaseEstimator):
    """Standardise and impute numbers, one-hot encode categories; works on tables and arrays.

    Medians with an indicator column for gaps; categories seen in training as one-hot columns (the
    64 most frequent per column, the rest pooled). "columns" centres numeric columns and divides
    each by its standard deviation in the training part. "overall" divides all of them by one
    number: embeddings share one unit, and blowing up their small components blows up noise. "none"
    leaves units alone (trees). `n_numeric_` features, the first, are the numeric columns.
    """

    def __init__(self, scale: Literal["columns", "overall", "none"] = "columns") -> None:
        self.scale = scale

    def fit(self, X: Table, y: Any = None) -> Self:
        """Learn medians, scales and categories from the training part."""
        impute = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
        scalers = {"columns": [StandardScaler()], "overall": [OverallScaler()], "none": []}
        numbers = make_pipeline(impute, *scalers[self.scale])
        if isinstance(X, pd.DataFrame):
            self.numeric_, self.categorical_ = column_kinds(X)
            one_hot = OneHotEncoder(
                handle_unknown="infrequent_if_exist",
                max_categories=MAX_ONE_HOT,
                sparse_output=False,
            )
            self.encoder_ = ColumnTransformer(
                [("numbers", numbers, self.numeric_), ("categories", one_hot, self.categorical_)]
            )
        else:
            self.encoder_ = numbers
        self.encoder_.fit(self._prepare(X))
        self.n_numeric_ = len(self.numeric_) if isinstance(X, pd.DataFrame) else X.shape[1]
        return self

    def transform(self, X: Table) -> np.ndarray:
        """Encode rows as finite float64; a category unseen in training is all zeros, or pooled."""
        check_is_fitted(self, "encoder_")
        return np.asarray(self.encoder_.transform(self._prepare(X)), dtype=np.float64)

    def _prepare(self, X: Table) -> Table:
        if not isinstance(X, pd.DataFrame):
            return np.asarray(X, dtype=np.float64)
        return pd.concat([_numbers(X, self.numeric_), _texts(X, self.categorical_)], axis=1)


class NativeEncoder(TransformerMixin, BaseEstimator):
    """Encode categories for boosting libraries that split on them natively.

    As "category" they are pandas category columns with the categories of the training part (unseen
    ones become missing), as scikit-learn and LightGBM take them; as "text" strings with missing as
    its own category, as CatBoost takes them. `categorical_` names the columns; none of an array.
    """

    def __init__(self, form: Literal["category", "text"] = "category") -> None:
        self.form = form

    def fit(self, X: Table, y: Any = None) -> Self:
        """Learn the columns and their categories."""
        self.numeric_: list[Any] = []
        self.categorical_: list[Any] = []
        self.categories_: dict[Any, list[str]] = {}
        if isinstance(X, pd.DataFrame):
            self.numeric_, self.categorical_ = column_kinds(X)
            texts = _texts(X, self.categorical_)
            for c in self.categorical_:
                self.categories_[c] = list(texts[c].value_counts().index[:MAX_NATIVE])
        self.fitted_ = True
        return self

    def transform(self, X: Table) -> Table:
        """Encode rows: a table stays a table, an array becomes float64."""
        check_is_fitted(self, "fitted_")
        if not isinstance(X, pd.DataFrame):
            return np.asarray(X, dtype=np.float64)
        texts = _texts(X, self.categorical_)
        if self.form == "category":
            for c in self.categorical_:
                known = texts[c].where(texts[c].isin(self.categories_[c]))
                texts[c] = pd.Categorical(known, categories=self.categories_[c])
        return pd.concat([_numbers(X, self.numeric_), texts], axis=1)


class CompleteEncoder(TransformerMixin, BaseEstimator):
    """Impute a table but keep its categories, for networks with category embeddings.

    Missing numbers become the median of the training part, with a column that marks them where
    there were gaps in training; missing categories are a category, unseen ones count as missing.
    Columns are named by text, and an array becomes a table.
    """

    def fit(self, X: Table, y: Any = None) -> Self:
        """Learn medians, gaps and categories from the training part."""
        self.native_ = NativeEncoder("category").fit(X)
        numbers = self._numbers(self.native_.transform(X))
        self.median_ = numbers.median().fillna(0.0)
        self.gaps_ = [c for c in numbers.columns if numbers[c].isna().any()]
        return self

    def _numbers(self, encoded: Table) -> pd.DataFrame:
        frame = pd.DataFrame(encoded)
        return frame.drop(columns=self.native_.categorical_)

    def transform(self, X: Table) -> pd.DataFrame:
        """Encode rows; every cell has a value."""
        check_is_fitted(self, "median_")
        encoded = self.native_.transform(X)
        numbers = self._numbers(encoded)
        parts = {f"number {c}": numbers[c].fillna(self.median_[c]) for c in numbers.columns}
        parts |= {f"gap {c}": numbers[c].isna().astype(np.float64) for c in self.gaps_}
        for c in self.native_.categorical_:
            known = self.native_.categories_[c]
            texts = encoded[c].astype(object)
            filled = texts.where(texts.notna(), MISSING_CATEGORY)
            levels = list(dict.fromkeys([*known, MISSING_CATEGORY]))
            parts[f"category {c}"] = pd.Series(
                pd.Categorical(filled, categories=levels), index=numbers.index
            )
        return pd.DataFrame(parts, index=numbers.index)
