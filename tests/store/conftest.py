import pytest

from tests.estimators.conftest import pytest_itemcollected
from tests.store.folders import based_model, plain_model

__all__ = ["pytest_itemcollected"]


@pytest.fixture(scope="session")
def plain_folder(tmp_path_factory):
    """A saved classifier without a base."""
    folder = tmp_path_factory.mktemp("store") / "plain.model"
    plain_model().save(folder)
    return folder


@pytest.fixture(scope="session")
def based_folder(tmp_path_factory):
    """A saved classifier whose base has a logistic regression and a forest."""
    folder = tmp_path_factory.mktemp("store") / "based.model"
    based_model().save(folder)
    return folder
