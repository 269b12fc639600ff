"""Sparse rows in files: svmlight and npz, and what is refused."""

import gzip

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import dump_svmlight_file

from nearwise.data.tables.sparse_files import is_sparse_file, read_sparse

X = sparse.random(20, 9, 0.3, format="csr", random_state=0)
Y = np.arange(20) % 3


@pytest.mark.parametrize("zero_based", [True, False])
@pytest.mark.parametrize("name", ["a.svmlight", "a.LIBSVM", "a.svm", "a.svm.gz"])
def test_the_index_of_a_value_is_its_column(tmp_path, name, zero_based):
    path = tmp_path / name
    dump_svmlight_file(X, Y, str(path), zero_based=zero_based)
    if name.endswith("gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert is_sparse_file(path)
    rows, labels = read_sparse(path)
    np.testing.assert_allclose(rows.toarray()[:, 0 if zero_based else 1 :], X.toarray())
    assert labels.tolist() == Y.tolist() and labels.dtype == np.int64


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csc_array, sparse.coo_matrix])
def test_an_npz_of_scipy_has_rows_alone(tmp_path, kind):
    sparse.save_npz(tmp_path / "a.npz", kind(X))
    assert is_sparse_file(tmp_path / "a.npz")
    rows, labels = read_sparse(tmp_path / "a.npz")
    assert labels is None and (rows != X).nnz == 0


def test_other_files_are_not_sparse(tmp_path):
    np.savez(tmp_path / "a.npz", X=X.toarray(), y=Y)
    (tmp_path / "b.npz").write_bytes(b"PK no archive")
    for name in ("a.npz", "b.npz", "none.npz", "a.csv", "a.csv.gz"):
        assert not is_sparse_file(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1 3:4 2:1\n", "cannot be read as svmlight.*sorted.*rising indices"),
        ("1,2 3:4\n", "cannot be read as svmlight.*one number as label"),
        ("cat 3:4\n", "cannot be read as svmlight"),
        ("1 -1:4\n", "cannot be read as svmlight"),
        ("", "has no rows"),
        ("1 999999999:2\n", "1,000,000,000 columns, more than 1,000,000"),
    ],
)
def test_damaged_lines_are_refused(tmp_path, text, why):
    (tmp_path / "a.svm").write_text(text)
    with pytest.raises(ValueError, match=why):
        read_sparse(tmp_path / "a.svm")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"indices": np.full(X.nnz, 999, dtype=np.int32)}, "a.npz cannot be read as a sparse"),
        ({"indptr": np.arange(21)[::-1]}, "a.npz cannot be read as a sparse"),
        ({"format": np.array(b"dia")}, "a.npz cannot be read as a sparse"),
        ({"format": np.array("csr", dtype=object)}, "Python objects"),
        ({"shape": np.array([20, 10**7])}, "10,000,000 columns"),
    ],
)
def test_an_npz_that_does_not_hold_together_is_refused(tmp_path, changes, why):
    held = {"data": X.data, "indices": X.indices, "indptr": X.indptr, "shape": np.array(X.shape)}
    np.savez(tmp_path / "a.npz", **(held | {"format": np.array(b"csr")} | changes))
    with pytest.raises(ValueError, match=why):
        read_sparse(tmp_path / "a.npz")
