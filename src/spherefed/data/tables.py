"""Tables of the user: `.csv` and `.parquet` files with one row per example, read by pandas."""

import csv
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spherefed.data.dataset import Dataset, check_examples, fixed_split, to_float32
from spherefed.data.examples import Examples
from spherefed.data.in_memory import LABEL_KEYS, find_column
from spherefed.data.labels import check_classes, class_names, label_numbers
from spherefed.data.locations import sha256_of
from spherefed.errors import ConfigError, DataError, install_extra

SUFFIXES = (".csv", ".parquet")


def load_table(
    path: Path, label_column: str | None = None, client_column: str | None = None, *, min_classes: int = 2
) -> Dataset:
    """A table with one row per example: a column of labels, numeric columns as features.

    `path` is a file, of which a fixed random fifth is held out for testing, or a folder with `train` and `test` files.
    `label_column` is by default the column `label`, `labels`, `target` or `y`. `client_column`, the column of partition
    'by-column', is no feature. Features stay as they are.
    """
    files = _files(path.expanduser())
    frames = {part: _read(file) for part, file in files.items()}
    label = find_column(label_column, LABEL_KEYS, list(frames["train"].columns), f"{path}: data.label_column")
    frames = {part: _with_all_texts(frame, (label, client_column), files[part]) for part, frame in frames.items()}
    columns = [name for name in frames["train"].columns if name not in (label, client_column)]
    raw = {part: _column(frame, label, files[part]) for part, frame in frames.items()}
    classes, unnamed = class_names([*raw.values()])
    made = {
        part: _examples(frame, columns, label_numbers(raw[part], classes, f"{files[part]}, {label!r}"), files[part])
        for part, frame in frames.items()
    }
    named: dict[str, dict[str, Any]] = {"train": {}, "test": {}}
    if client_column is not None and client_column in frames["train"].columns:
        named["train"] = {client_column: _column(frames["train"], client_column, files["train"])}
        if "test" in frames and client_column in frames["test"].columns:
            named["test"] = {client_column: frames["test"][client_column].to_numpy()}
    if "test" not in made:
        train, test = fixed_split(_enough(len(made["train"]), path))
        whole, of_whole = made["train"], named["train"]
        named = {
            part: {name: values[rows.numpy()] for name, values in of_whole.items()}
            for part, rows in (("train", train), ("test", test))
        }
        made = {
            part: Examples(whole.inputs[rows], whole.labels[rows]) for part, rows in (("train", train), ("test", test))
        }
    check_classes(classes, f"{path}, column {label!r}", min_classes)
    return Dataset(
        name=f"table:{path}",
        train=made["train"],
        test=made["test"],
        classes=classes,
        unnamed_classes=unnamed,
        columns=named["train"],
        test_columns=named["test"],
        provenance={"source": str(path), "features": ", ".join(map(str, columns))} | _digests(files),
    )


def _files(path: Path) -> dict[str, Path]:
    if path.is_file():
        return {"train": path}
    if not path.exists():
        raise DataError(f"no file {path}; table: needs a .csv or .parquet file, or a folder with train and test files")
    found = {
        part: next((f for s in SUFFIXES if (f := path / f"{part}{s}").is_file()), None) for part in ("train", "test")
    }
    files = {part: file for part, file in found.items() if file is not None}
    if len(files) < 2:
        has = ", ".join(sorted(file.name for file in path.iterdir())[:5]) or "nothing"
        raise DataError(f"{path} needs train.csv and test.csv, or train.parquet and test.parquet; it has {has}")
    return files


def _read(file: Path) -> Any:
    if file.suffix.lower() not in SUFFIXES:
        raise DataError(f"{file} ends in {file.suffix or 'nothing'!r}; tables are .csv or .parquet files")
    try:
        import pandas

        frame = _read_csv(file) if file.suffix.lower() == ".csv" else pandas.read_parquet(file)
    except DataError:
        raise
    except ImportError as error:
        raise ConfigError(f"table: needs pandas: {install_extra('pandas')} ({str(error).splitlines()[0]})") from None
    except Exception as error:  # the parsers raise many types of exceptions on damaged files
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{file} cannot be read as a table: {reason}") from error
    if not len(frame):
        raise DataError(f"{file} has no rows; a table needs one row per example")
    return frame


def _read_csv(file: Path, **options: Any) -> Any:
    """A table whose rows have as many fields as the header; commas at the end of every row are allowed."""
    import pandas

    with warnings.catch_warnings():
        warnings.simplefilter("error", pandas.errors.ParserWarning)
        try:
            # Without index_col=False, pandas takes the first field of longer rows as an index and shifts the others.
            return pandas.read_csv(file, index_col=False, low_memory=False, **options)
        except pandas.errors.ParserWarning:
            raise _longer_row(file) from None


def _longer_row(file: Path) -> DataError:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        rows = [row for row in csv.reader(lines) if row]
    width = len(rows[0])
    number, row = next((n, row) for n, row in enumerate(rows[1:]) if any(row[width:]))
    return DataError(
        f"{file}: row {number} (counted from 0) has {len(row)} fields, and the header has {width}; remove the further "
        "fields, name them in the header, or quote texts that contain a comma"
    )


def _with_all_texts(frame: Any, names: tuple[str | None, ...], file: Path) -> Any:
    """The frame of a .csv file, in which only empty fields of these columns are missing, if they are texts.

    Pandas also takes NA, None, null and others for missing, which may be the name of a class or of a client.
    """
    missing = {name: frame[name].isna() for name in frame.columns if name in names}
    texts = [n for n, rows in missing.items() if rows.all() or (rows.any() and frame[n].dtype.kind == "O")]
    if not texts or file.suffix.lower() != ".csv":
        return frame
    return frame.assign(**_read_csv(file, usecols=texts, keep_default_na=False, na_values=[""]))


def _column(frame: Any, name: str, file: Path) -> Any:
    if name not in frame.columns:
        raise DataError(f"{file} has no column {name!r}; it has {', '.join(map(str, frame.columns))}")
    missing = np.flatnonzero(frame[name].isna().to_numpy())
    if len(missing):
        raise DataError(
            f"{file}: column {name!r} has no value in row {int(missing[0])} ({len(missing)} such rows); remove them"
        )
    return frame[name].to_numpy()


def _examples(frame: Any, columns: list[str], labels: torch.Tensor, file: Path) -> Examples:
    if not columns:
        raise DataError(f"{file} has no feature column beside the labels; a table needs numeric columns")
    if lacking := [name for name in columns if name not in frame.columns]:
        raise DataError(f"{file} has no column {lacking[0]!r}, which the training part has")
    texts = [str(name) for name in columns if frame[name].dtype.kind not in "biuf"]
    if texts:
        raise DataError(
            f"{file}: column {texts[0]!r} is not numeric ({frame[texts[0]].dtype}); "
            "encode it as numbers, remove it, or name it as partition.column"
        )
    examples = Examples(torch.from_numpy(to_float32(frame[columns].to_numpy(dtype=np.float64), str(file))), labels)
    check_examples(examples, num_classes=int(labels.max()) + 1, where=str(file))
    return examples


def _enough(size: int, path: Path) -> int:
    if size < 2:
        raise DataError(
            f"{path}: one row is too few for a training and a test part; add rows, or a folder with both parts"
        )
    return size


def _digests(files: dict[str, Path]) -> dict[str, str]:
    return {f"sha256 of {part}": sha256_of(file) for part, file in files.items()}
