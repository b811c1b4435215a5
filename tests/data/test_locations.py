"""Where data are looked for, and what a missing file says."""

import pytest

from spherefed.data.locations import check_data_root, data_root
from spherefed.data.sources import SOURCES, load
from spherefed.errors import DataError

pytestmark = pytest.mark.usefixtures("no_debian_folder")


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.remotes])
def test_a_missing_data_set_says_what_to_run_and_where_to_put_which_file(tmp_path, name):
    with pytest.raises(DataError) as caught:
        load(name, tmp_path)
    for words in (str(tmp_path), f"spherefed data get {name}", SOURCES[name].remotes[0].name):
        assert words in str(caught.value)


def test_data_root_prefers_argument_then_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SPHEREFED_DATA", str(tmp_path / "env"))
    assert data_root(tmp_path) == tmp_path
    assert data_root() == tmp_path / "env"
    monkeypatch.delenv("SPHEREFED_DATA")
    assert data_root().name == "spherefed"


def test_a_data_root_that_does_not_exist_is_named(tmp_path):
    root = tmp_path / "dta"
    with pytest.raises(DataError, match=rf"not in {root}, which is no folder .*data get cifar100 --data-root {root}'"):
        load("cifar100", root)
    with pytest.raises(DataError, match=rf"--data-root {root} is no folder; name a folder that holds data sets"):
        check_data_root(root)
    check_data_root(tmp_path)
    check_data_root(None)
