"""Natural clients from a column, such as the hospital that an example comes from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from spherefed.errors import ConfigError, DataError
from spherefed.schema import suggest

Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class ByColumn:
    """One client for each value of a column of the data, in the order of the sorted values."""

    kind: ClassVar[str] = "by-column"
    column: str
    """An array of an `arrays:` file with one value per example, or a column of a table or of data in memory."""
    clients: int = 10
    """Number of clients, which must equal the number of different values."""

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise ConfigError(f"partition.clients must be at least 1, got {self.clients}")

    def split(self, labels: Indices, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        raise ConfigError(f"partition.kind = 'by-column' needs data with a column {self.column!r}; these have none")

    def split_column(self, columns: Mapping[str, Any], rows: Indices) -> tuple[Indices, ...]:
        """One array of positions in `rows` per value; `rows` are the examples in use."""
        if self.column not in columns:
            usual = "they have no columns: use an arrays: file with such an array, a table:, or another partition.kind"
            known = suggest(self.column, columns) if columns else usual
            raise DataError(f"the data have no column {self.column!r} for partition.kind = 'by-column'; {known}")
        column = _values(columns[self.column], self.column)
        if len(rows) and rows.max() >= len(column):
            raise DataError(
                f"column {self.column!r} has values of {len(column)} examples, and the clients share {len(rows)}: with "
                "data.pooled = true the test examples need the column too (in an arrays: file as an array "
                f"'test_{self.column}'); add it, or set data.pooled = false"
            )
        # A client without an example in use stays a client.
        values, different = column[rows], _different(column, self.column)
        if len(different) != self.clients:
            raise ConfigError(
                f"column {self.column!r} has {len(different)} different values, but partition.clients is "
                f"{self.clients}; set partition.clients={len(different)}"
            )
        return tuple(np.flatnonzero(values == value) for value in different)


def is_frame(data: Any) -> bool:
    """Whether this is a pandas frame, or behaves like one; pandas need not be installed."""
    return hasattr(data, "columns") and hasattr(data, "to_numpy")


def is_hugging_face(data: Any) -> bool:
    """Whether this is a data set of the Hugging Face library, which need not be installed."""
    return hasattr(data, "column_names") and hasattr(data, "features")


def groups_by_column(data: Any, column: str) -> list[Any]:
    """A pandas frame or a dict of columns as one such data set per value of the column, without the column."""
    frame = is_frame(data)
    if is_hugging_face(data):
        data = {name: data[name] for name in data.column_names}
    if not frame and not isinstance(data, Mapping):
        raise DataError(
            f"partition.kind = 'by-column' needs data with columns, got a {type(data).__name__}; "
            "pass a pandas frame or a dict of columns"
        )
    names = list(data.columns) if frame else list(data)
    if column not in names:
        raise DataError(
            f"the data have no column {column!r} for partition.kind = 'by-column'; {suggest(column, names)}"
        )
    values = _values(data[column], column)
    rows = [np.flatnonzero(values == value) for value in _different(values, column)]
    if frame:
        return [data.drop(columns=[column]).iloc[chosen] for chosen in rows]
    # By position: a pandas Series is indexed by its labels.
    others = {name: each.to_numpy() if hasattr(each, "iloc") else each for name, each in data.items() if name != column}
    if unlike := [name for name, each in others.items() if len(each) != len(values)]:
        raise DataError(
            f"column {column!r} has {len(values)} values, column {unlike[0]!r} {len(others[unlike[0]])}; each example "
            "needs one value in every column"
        )
    return [{name: [each[int(i)] for i in chosen] for name, each in others.items()} for chosen in rows]


def without_column(data: Any, column: str) -> Any:
    """A pandas frame without this column; other data as they are, because their inputs have a column of their own."""
    return data.drop(columns=[column]) if is_frame(data) and column in data.columns else data


def _values(given: Any, column: str) -> NDArray[Any]:
    """One value per example, none of them missing."""
    # Numpy would turn None and NaN among texts into texts.
    values = np.asarray(given, dtype=object if isinstance(given, list | tuple) else None)
    if values.ndim != 1:
        raise DataError(f"column {column!r} needs one value per example, got an array of shape {values.shape}")
    if missing := [row for row, value in enumerate(values) if _is_missing(value)]:
        raise DataError(
            f"column {column!r} has no value in row {missing[0]} ({len(missing)} such rows), and by-column needs one "
            "to find the client; fill them in, or remove these rows"
        )
    return values


def _different(values: NDArray[Any], column: str) -> NDArray[Any]:
    """The different values, sorted."""
    try:
        return np.unique(values)
    except TypeError:
        first = {type(value): value for value in reversed(values)}
        raise DataError(
            f"column {column!r} mixes values that cannot be sorted: {', '.join(map(repr, first.values()))}; give only "
            "numbers or only texts, for example by str(value) for each of them"
        ) from None


def _is_missing(value: Any) -> bool:
    """None, NaN and NaT, of which the last two differ from themselves, and pandas.NA."""
    return value is None or type(value).__name__ == "NAType" or bool(value != value)  # noqa: PLR0124
