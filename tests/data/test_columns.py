"""Natural clients from a column of the data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spherefed as sf
from spherefed.data.columns import ByColumn, groups_by_column
from spherefed.errors import ConfigError, DataError

RNG = np.random.default_rng(0)
LABELS = np.arange(120) % 3
FEATURES = RNG.normal(size=(120, 4)) + 3.0 * np.eye(3, 4)[LABELS]
HOSPITALS = np.array(["west", "north", "south", "north"] * 30)


def experiment(**partition: Any) -> sf.Experiment:
    by_column = {"kind": "by-column", "column": "hospital"} | partition
    return sf.recipe("digits", rounds=2, local={"epochs": 2}, partition=by_column)


def arrays(path: Path, **others: Any) -> dict[str, str]:
    np.savez(path, images=FEATURES, labels=LABELS, hospital=HOSPITALS, **others)
    return {"name": f"arrays:{path}"}


def clients(result: sf.Result) -> int:
    return result.records()[0]["clients"]


def test_every_value_of_the_column_is_a_client(tmp_path: Path) -> None:
    made = ByColumn(column="hospital", clients=3).split_column({"hospital": HOSPITALS}, np.arange(0, 120, 2))
    for part, name in zip(made, ("north", "south", "west"), strict=True):
        assert [HOSPITALS[2 * i] for i in part] == [name] * int((HOSPITALS[::2] == name).sum())


def test_an_array_file_names_its_clients(tmp_path: Path) -> None:
    data = arrays(tmp_path / "mine.npz", test_images=FEATURES[:9], test_labels=LABELS[:9])
    mine = sf.recipe("digits", rounds=2, data=data, partition={"kind": "by-column", "column": "hospital", "clients": 3})
    assert clients(sf.run(mine, progress=False)) == 3
    subset = sf.recipe("digits", rounds=1, data=data | {"examples": 60, "validation": 0.2}, partition=mine.partition)
    assert clients(sf.run(subset, progress=False)) == 3


def test_a_dict_of_columns_names_its_clients() -> None:
    data = {"image": FEATURES, "label": LABELS, "hospital": HOSPITALS}
    result = sf.run(experiment(), data=data, progress=False)
    assert (clients(result), result.experiment.partition) == (3, ByColumn(column="hospital", clients=3))


def test_a_frame_names_its_clients_and_the_column_is_no_feature() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(FEATURES).assign(label=LABELS, hospital=HOSPITALS)
    result = sf.run(experiment(), data=frame, progress=False)
    assert clients(result) == 3
    assert result.model.encoder[1].in_features == 4  # type: ignore[index, union-attr]


def test_mistakes_are_named(tmp_path: Path) -> None:
    data = arrays(tmp_path / "mine.npz")
    by_column = {"kind": "by-column", "column": "hospital", "clients": 4}
    with pytest.raises(ConfigError, match=r"3 different values, but partition.clients is 4; set partition.clients=3"):
        sf.run(sf.recipe("digits", data=data, partition=by_column), progress=False)
    with pytest.raises(DataError, match=r"no column 'hospitl' .*did you mean 'hospital'"):
        sf.run(sf.recipe("digits", data=data, partition=by_column | {"column": "hospitl"}), progress=False)
    with pytest.raises(DataError, match="they have no columns"):
        sf.run(sf.recipe("digits", partition=by_column), progress=False)
    with pytest.raises(DataError, match="needs data with columns, got a tuple"):
        sf.run(experiment(), data=(FEATURES, LABELS), progress=False)
    with pytest.raises(DataError, match="no column 'ward'"):
        groups_by_column({"image": FEATURES, "label": LABELS}, "ward")
