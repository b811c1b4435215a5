"""Natural clients from a column of the data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spherefed as sf
from spherefed.assembly import load_data, split_data
from spherefed.data.columns import ByColumn, groups_by_column
from spherefed.data.tables import load_table
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


POOLED = {"pooled": True, "held_out": 0.2}


@pytest.mark.parametrize("kind", ["fifth", "arrays", "table", "subset"])
def test_pooled_test_examples_belong_to_their_clients(kind: str, tmp_path: Path) -> None:
    others = {"test_images": FEATURES[:40], "test_labels": LABELS[:40], "test_hospital": HOSPITALS[:40]}
    data: dict[str, Any] = arrays(tmp_path / "mine.npz", **(others if kind == "arrays" else {})) | POOLED
    if kind == "table":
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame(FEATURES).assign(label=LABELS, hospital=HOSPITALS)
        frame.to_csv(tmp_path / "train.csv", index=False)
        frame[:40].to_csv(tmp_path / "test.csv", index=False)
        data |= {"name": f"table:{tmp_path}"}
    if kind == "subset":
        data |= {"examples": 60}
    by_column = {"kind": "by-column", "column": "hospital", "clients": 3}
    mine = sf.recipe("digits", rounds=1, data=data, partition=by_column)
    made = load_data(mine, None)
    parts = split_data(mine, made).parts
    assert sum(map(len, parts)) == len(made.train) == {"fifth": 120, "subset": 60}.get(kind, 160)
    for part, name in zip(parts, ("north", "south", "west"), strict=True):
        own = {row.tobytes() for row in FEATURES[name == HOSPITALS].astype(np.float32)}
        assert {row.tobytes() for row in made.train.inputs[part].numpy()} <= own


def test_pooled_test_examples_without_the_column_are_named(tmp_path: Path) -> None:
    data = arrays(tmp_path / "mine.npz", test_images=FEATURES[:9], test_labels=LABELS[:9]) | POOLED
    mine = sf.recipe("digits", data=data, partition={"kind": "by-column", "column": "hospital", "clients": 3})
    with pytest.raises(DataError, match=r"of 120 examples, and the clients share 129.*'test_hospital'.*pooled = false"):
        sf.run(mine, progress=False)


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


def test_a_test_frame_may_have_the_column_too() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(FEATURES).assign(label=LABELS, hospital=HOSPITALS)
    accuracies = [
        sf.run(experiment(), data=frame, test=test, progress=False).accuracy
        for test in (frame, frame.drop(columns="hospital"))
    ]
    assert accuracies[0] == accuracies[1] > 0.5


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


MISSING: dict[str, Any] = {
    "NaN": np.where(np.arange(120) % 5 == 3, np.nan, np.arange(120) % 3),
    "None": [None if i % 5 == 3 else "north" for i in range(120)],
    "NaN among texts": [float("nan") if i % 5 == 3 else "north" for i in range(120)],
    "date": np.where(np.arange(120) % 5 == 3, np.datetime64("NaT"), np.datetime64("2020-01-01")),
}


@pytest.mark.parametrize("hospitals", MISSING.values(), ids=MISSING)
def test_a_missing_value_names_no_client(hospitals: Any) -> None:
    said = r"column 'hospital' has no value in row 3 \(24 such rows\).*fill them in, or remove"
    with pytest.raises(DataError, match=said):
        sf.run(experiment(), data={"image": FEATURES, "label": LABELS, "hospital": hospitals}, progress=False)
    with pytest.raises(DataError, match=said):
        ByColumn(column="hospital", clients=3).split_column({"hospital": np.asarray(hospitals, object)}, np.arange(120))


@pytest.mark.parametrize("kind", ["float64", "Int64", "string", "category"])
def test_a_missing_value_in_a_frame_or_a_table_names_no_client(kind: str, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    hospital = pandas.Series(np.arange(120) % 3).astype("str" if kind in ("string", "category") else kind).astype(kind)
    hospital = hospital.where(np.arange(120) % 5 != 3)
    frame = pandas.DataFrame(FEATURES).assign(label=LABELS, hospital=hospital)
    with pytest.raises(DataError, match=r"column 'hospital' has no value in row 3 \(24 such rows\)"):
        groups_by_column(frame, "hospital")
    frame.to_csv(tmp_path / "mine.csv", index=False)
    with pytest.raises(DataError, match=r"column 'hospital' has no value in row 3 \(24 such rows\)"):
        load_table(tmp_path / "mine.csv", client_column="hospital")


@pytest.mark.parametrize("kind", [list, lambda mixed: np.array(mixed, dtype=object)])
def test_a_column_of_numbers_and_texts_is_refused(kind: Any) -> None:
    hospitals = kind([7, "north", 7, "9"] * 30)
    said = r"column 'hospital' mixes values that cannot be sorted: .*'north'.*only texts, for example by str\(value\)"
    with pytest.raises(DataError, match=said):
        groups_by_column({"image": FEATURES, "label": LABELS, "hospital": hospitals}, "hospital")
    with pytest.raises(DataError, match=said):
        ByColumn(column="hospital", clients=3).split_column({"hospital": hospitals}, np.arange(120))


def test_a_series_is_read_by_position() -> None:
    pandas = pytest.importorskip("pandas")
    order = np.random.default_rng(1).permutation(120)
    columns = {"label": pandas.Series(LABELS)[order], "hospital": pandas.Series(HOSPITALS)[order]}
    by_position = {name: series.to_numpy() for name, series in columns.items()}
    inputs = {"image": FEATURES[order]}
    for part, expected in zip(
        groups_by_column(inputs | columns, "hospital"), groups_by_column(inputs | by_position, "hospital"), strict=True
    ):
        assert np.array_equal(part["label"], expected["label"])
        assert np.array_equal(part["image"], expected["image"])


def test_columns_of_unequal_lengths_are_named() -> None:
    with pytest.raises(DataError, match="'hospital' has 120 values, column 'label' 119"):
        groups_by_column({"label": LABELS[1:], "hospital": HOSPITALS}, "hospital")
    with pytest.raises(DataError, match=r"one value per example, got an array of shape \(60, 2\)"):
        groups_by_column({"label": LABELS[:60], "hospital": HOSPITALS.reshape(60, 2)}, "hospital")
