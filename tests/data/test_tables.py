"""Tables of the user: `.csv` and `.parquet` files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import spherefed as sf
from spherefed.data.sources import load
from spherefed.errors import ConfigError, DataError

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

LABELS = np.arange(60) % 3
FEATURES = np.random.default_rng(0).normal(size=(60, 2)) + 3.0 * LABELS[:, None]
HOSPITALS = np.array(["west", "north"] * 30)


def frame(**columns: Any) -> Any:
    return pandas.DataFrame({"age": FEATURES[:, 0], "dose": FEATURES[:, 1], **columns})


def written(table: Any, path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False) if path.suffix == ".csv" else table.to_parquet(path)
    return f"table:{path}"


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_gives_the_examples_of_the_same_arrays(suffix: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", images=FEATURES.astype(np.float32), labels=LABELS)
    made = load(written(frame(label=LABELS), tmp_path / f"mine.{suffix}"))
    expected = load(f"arrays:{tmp_path / 'mine.npz'}")
    for part in ("train", "test"):
        torch.testing.assert_close(getattr(made, part).inputs, getattr(expected, part).inputs)
        assert torch.equal(getattr(made, part).labels, getattr(expected, part).labels)
    assert len(made.provenance["sha256 of train"]) == 64


def test_text_labels_and_a_named_column(tmp_path: Path) -> None:
    names = np.array(["mild", "severe", "none"])[LABELS]
    name = written(frame(outcome=names), tmp_path / "mine.csv")
    made = load(name, label_column="outcome")
    assert made.classes == ("mild", "none", "severe")
    experiment = sf.recipe("digits", rounds=3, data={"name": name, "label_column": "outcome"}, partition={"clients": 3})
    assert sf.run(experiment, progress=False).accuracy > 0.5


def test_a_folder_has_its_own_test_file(tmp_path: Path) -> None:
    written(frame(label=LABELS), tmp_path / "train.parquet")
    made = load(written(frame(label=LABELS)[:7], tmp_path / "test.csv").removesuffix("/test.csv"))
    assert (len(made.train), len(made.test)) == (60, 7)
    torch.testing.assert_close(made.test.inputs.double(), torch.from_numpy(FEATURES[:7]), rtol=1e-6, atol=1e-6)


def test_a_column_names_the_clients_and_is_no_feature(tmp_path: Path) -> None:
    name = written(frame(y=LABELS, hospital=HOSPITALS), tmp_path / "mine.csv")
    by_column = {"kind": "by-column", "column": "hospital", "clients": 2}
    result = sf.run(sf.recipe("digits", rounds=1, data={"name": name}, partition=by_column), progress=False)
    assert result.model.encoder[1].in_features == 2  # type: ignore[index, union-attr]
    assert result.records()[0]["clients"] == 2


def test_only_an_empty_field_is_a_missing_text(tmp_path: Path) -> None:
    names = np.array(["None", "NA", "mild"])[LABELS]
    wards = np.array(["null", "nan", "west"])[LABELS]
    name = written(frame(label=names, ward=wards), tmp_path / "mine.csv")
    made = load(name, client_column="ward")
    assert made.classes == ("NA", "None", "mild")
    assert {*zip(made.train.labels.tolist(), made.columns["ward"].tolist(), strict=True)} == {
        (1, "null"),
        (0, "nan"),
        (2, "west"),
    }
    assert load(written(frame(label=names)[:2], tmp_path / "two.csv")).classes == ("NA", "None")
    names[[4, 5]] = ""
    with pytest.raises(DataError, match=r"column 'label' has no value in row 4 \(2 such rows\)"):
        load(written(frame(label=names), tmp_path / "mine.csv"))


def test_class_numbers_stay_numbers_beside_missing_ones(tmp_path: Path) -> None:
    labels = LABELS.astype(object)
    labels[7] = "NA"
    with pytest.raises(DataError, match=r"column 'label' has no value in row 7 \(1 such rows\)"):
        load(written(frame(label=labels), tmp_path / "mine.csv"))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["1,2,0,9", "3,4,1,9"], r"row 0 \(counted from 0\) has 4 fields, and the header has 3; remove the further"),
        (["1,2,0,", "3,4,1,9"], r"row 1 \(counted from 0\) has 4 fields"),
        (["1,2,0,8,9", "3,4,1"], r"row 0 \(counted from 0\) has 5 fields"),
        (["1,2,0", "3,4,1,9"], "Expected 3 fields in line 3, saw 4"),
    ],
)
def test_rows_longer_than_the_header_are_named(rows: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("\n".join(["age,dose,label", *rows]))
    with pytest.raises(DataError, match=words):
        load(f"table:{tmp_path / 'mine.csv'}")


def test_a_comma_at_the_end_of_every_row_changes_nothing(tmp_path: Path) -> None:
    name = written(frame(label=LABELS), tmp_path / "mine.csv")
    expected, path = load(name), tmp_path / "mine.csv"
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, *(f"{row}," for row in rows)]))
    made = load(name)
    assert torch.equal(made.train.inputs, expected.train.inputs)
    assert torch.equal(made.train.labels, expected.train.labels)


@pytest.mark.parametrize(
    ("table", "options", "words"),
    [
        (frame(diagnosis=LABELS), {}, r"no column 'label' or .*name one of the columns age, dose, diagnosis"),
        (frame(label=LABELS), {"label_column": "lable"}, r"data\.label_column: there is no column 'lable'"),
        (frame(label=LABELS, hospital=HOSPITALS), {}, "'hospital' is not numeric .*encode it as numbers, remove it"),
        (frame(label=LABELS).assign(label=None), {}, "column 'label' has no value in row 0"),
        (frame(label=LABELS).assign(age=float("nan")), {}, "NaN or infinity"),
        (frame(label=LABELS)[:0], {}, "has no rows"),
        (frame(label=LABELS)[:1], {}, "one row is too few"),
        (frame(label=LABELS)[["label"]], {}, "no feature column"),
    ],
)
def test_mistakes_are_named(table: Any, options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        load(written(table, tmp_path / "mine.csv"), **options)


def test_files_that_are_no_tables_are_named(tmp_path: Path) -> None:
    for name, words in (("no.csv", "no file"), (".", "needs train.csv and test.csv")):
        with pytest.raises(DataError, match=words):
            load(f"table:{tmp_path / name}")
    (tmp_path / "mine.parquet").write_bytes(b"no table")
    with pytest.raises(DataError, match=r"mine\.parquet cannot be read as a table"):
        load(f"table:{tmp_path / 'mine.parquet'}")
    (tmp_path / "mine.xlsx").write_bytes(b"")
    with pytest.raises(DataError, match=r"ends in '\.xlsx'; tables are \.csv or \.parquet"):
        load(f"table:{tmp_path / 'mine.xlsx'}")


def test_without_pandas_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = written(frame(label=LABELS), tmp_path / "mine.csv")
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(
        ConfigError, match=r"table: needs pandas: install the extra 'pandas' .*pip install -e '\.\[pandas\]'"
    ):
        load(name)
