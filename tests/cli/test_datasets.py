"""The registry on the command line."""

from nearwise.data import dataset_names


def test_the_list_names_every_data_set(nearwise, tmp_path):
    result = nearwise("datasets", "--data-root", tmp_path)
    assert result.exit_code == 0
    for name in dataset_names():
        assert name in result.out


def test_one_data_set_is_described(nearwise):
    result = nearwise("datasets", "iris")
    assert result.exit_code == 0
    assert "150" in result.out


def test_a_wrong_name_gives_the_nearest(nearwise):
    result = nearwise("datasets", "iriss")
    assert result.exit_code == 2
    assert "'iris'" in result.err
