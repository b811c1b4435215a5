"""Data that a caller has in memory: arrays, tensors, tables and dataset objects of other libraries, as a `Dataset`.

Nothing here imports those libraries: a pandas frame or a Hugging Face dataset is recognised by its attributes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spherefed.data.arrays import CHANNELS
from spherefed.data.columns import is_frame, is_hugging_face
from spherefed.data.dataset import Dataset, check_finite, fixed_split, to_float32
from spherefed.data.examples import Examples
from spherefed.data.labels import are_numbers, check_classes, class_names, label_numbers, renumbered
from spherefed.data.partition import Partition, partition_of
from spherefed.errors import DataError
from spherefed.tensors import digest

PREFIX = "memory:"
"""The name of data in memory is this prefix and the start of their SHA-256."""
IMAGE_KEYS, LABEL_KEYS = ("image", "img", "inputs", "x"), ("label", "labels", "target", "y")
"""Columns that are used if the caller names none."""


class Columns(NamedTuple):
    """Inputs and labels of one part of the data, and what the part says about them."""

    where: str
    """The part, for messages."""
    inputs: Any
    labels: Any
    classes: tuple[str, ...] = ()
    """Names of the classes in the order of their numbers."""
    features: tuple[Any, ...] = ()
    """Names of the columns of the inputs."""


def dataset_in_memory(
    data: Any,
    test: Any = None,
    *,
    image_key: str | None = None,
    label_key: str | None = None,
    min_classes: int = 2,
) -> Dataset:
    """The data set of a caller; without `test` a fixed random fifth of the examples is held out for testing.

    `data` is (X, y), a torch Dataset, a Hugging Face dataset, a dict of columns, a pandas frame with a label column, or
    a list of batches; or a dict of `train` and `test` in one of these forms. X has any rank: bytes are images and are
    scaled to 0..1, other integers (token ids) stay as they are, floats become float32. Labels are class numbers or
    texts.

    >>> made = dataset_in_memory((np.zeros((10, 4)), ["cat", "dog"] * 5))
    >>> made.classes, made.input_shape, len(made.train), len(made.test)
    (('cat', 'dog'), (4,), 8, 2)
    """
    if isinstance(data, Dataset):
        if test is not None:
            raise DataError(
                f"test= was given beside a Dataset, which has a test part of {len(data.test)} examples; leave test= "
                "out, or use dataclasses.replace(data, test=…)"
            )
        check_classes(data.classes, f"data set {data.name!r}", min_classes)
        return _named(data)
    if test is None and isinstance(data, Mapping) and {"train", "test"} <= data.keys():  # a DatasetDict
        data, test = data["train"], data["test"]
    given = {"data": data} if test is None else {"data": data, "test": test}
    columns = _aligned([_columns(each, image_key, label_key, where) for where, each in given.items()])
    classes, unnamed = class_names([each.labels for each in columns], columns[0].classes)
    examples = _examples(columns[0], classes)
    if test is None:
        if len(examples) < 2:
            raise DataError(
                f"data: {len(examples)} example(s) are too few for a training and a test part, which need one each; "
                "give more, or test= as well"
            )
        kept, left = fixed_split(len(examples))
        parts = examples.take(kept), examples.take(left)
    else:
        parts = examples, _examples(columns[1], classes)
    check_classes(classes, "labels", min_classes)
    return _named(
        Dataset(
            name="memory", train=_copied(parts[0]), test=_copied(parts[1]), classes=classes, unnamed_classes=unnamed
        )
    )


def clients_in_memory(
    clients: Sequence[Any], test: Any = None, *, image_key: str | None = None, label_key: str | None = None
) -> tuple[Dataset, Partition]:
    """One data set per client, and the partition that keeps them apart.

    Without `test`, a fixed random fifth of each client's examples goes to the common test set.
    """
    if not clients:
        raise DataError("clients= needs at least one data set, got none; give a list with one data set per client")
    sources = {f"clients[{k}]": each for k, each in enumerate(clients)} | ({} if test is None else {"test": test})
    columns = _aligned([_columns(each, image_key, label_key, where) for where, each in sources.items()])
    classes, unnamed = class_names([each.labels for each in columns], columns[0].classes)
    check_classes(classes, "labels")
    given = [_examples(each, classes) for each in columns[: len(clients)]]
    shapes = {tuple(each.inputs.shape[1:]) for each in given}
    if len(shapes) > 1:
        raise DataError(
            f"every client's inputs need the same shape, got {', '.join(map(str, sorted(shapes)))}; reshape or pad them"
        )
    if test is None:
        nothing = torch.zeros(0, dtype=torch.int64)
        splits = [fixed_split(len(each)) if len(each) > 1 else (torch.arange(len(each)), nothing) for each in given]
        test_part = _joined([each.take(left) for each, (_, left) in zip(given, splits, strict=True)])
        given = [each.take(kept) for each, (kept, _) in zip(given, splits, strict=True)]
    else:
        test_part = _examples(columns[-1], classes)
    train = _joined(given)
    ends = np.cumsum([len(each) for each in given])
    parts = tuple(np.split(np.arange(len(train), dtype=np.int64), ends[:-1]))
    made = _named(Dataset(name="memory", train=train, test=test_part, classes=classes, unnamed_classes=unnamed), parts)
    return made, partition_of(parts, train.labels.numpy(), len(classes))


def _aligned(parts: list[Columns]) -> list[Columns]:
    """The same parts with the columns of frames in one order, and with class numbers of one list of names."""
    frames = [part for part in parts if part.features]
    parts = [_in_order(part, frames[0]) if part.features else part for part in parts]
    lists = dict.fromkeys(part.classes for part in parts if part.classes)
    if len(lists) < 2:
        return parts
    if unnamed := [part.where for part in parts if not part.classes and are_numbers(part.labels, part.where)]:
        raise DataError(
            f"labels: parts of the data number their classes differently ({'; '.join(map(', '.join, lists))}), and "
            f"{unnamed[0]} does not name its classes; give the labels as texts in all parts"
        )
    for part in parts:
        if len({*part.classes}) < len(part.classes):
            raise DataError(
                f"{part.where}: two classes have one name, and classes are matched by name; rename one of them"
            )
    classes = tuple(dict.fromkeys(name for names in lists for name in names))
    return [
        part._replace(labels=renumbered(part.labels, part.classes, classes, part.where), classes=classes)
        for part in parts
    ]


def _in_order(part: Columns, first: Columns) -> Columns:
    """The part with its columns in the order of the first frame."""
    if part.features == first.features:
        return part
    for one, other in ((part, first), (first, part)):
        if unlike := [name for name in one.features if name not in other.features]:
            raise DataError(
                f"{one.where} has a column {unlike[0]!r}, and {other.where} has not; every part needs the same "
                f"columns: {one.where} has {list(one.features)[:5]}, {other.where} {list(other.features)[:5]}"
            )
    if len(part.features) != len(first.features) or len({*part.features}) < len(part.features):
        raise DataError(f"{part.where}: two columns have one name, and columns are matched by name; rename one of them")
    order = [part.features.index(name) for name in first.features]
    return part._replace(inputs=part.inputs[:, order], features=first.features)


def _columns(data: Any, image_key: str | None, label_key: str | None, where: str) -> Columns:
    """Inputs and labels of any kind of data."""
    if isinstance(data, str):
        raise DataError(
            f"{where} is the text {data!r}; files are named in the experiment: data={{'name': 'table:FILE.csv'}}"
        )
    if is_frame(data):
        label = find_column(label_key, LABEL_KEYS, list(data.columns), f"{where}: label_key")
        inputs = data.drop(columns=[label])
        return Columns(where, _frame_inputs(inputs, where), data[label].to_numpy(), features=tuple(inputs.columns))
    if is_hugging_face(data):
        names = list(data.column_names)
        image, label = _keys(image_key, label_key, names, where)
        classes = tuple(getattr(data.features[label], "names", None) or ())
        return Columns(where, list(data[image]), np.asarray(data[label]), classes)
    if isinstance(data, Mapping):
        image, label = _keys(image_key, label_key, list(data), where)
        return Columns(where, data[image], data[label])
    if isinstance(data, tuple) and len(data) == 2:
        return Columns(where, data[0], data[1])
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, list | np.ndarray | Tensor):
        rows = [_row(data[i], image_key, label_key, where) for i in range(len(data))]  # torch
        classes = tuple(map(str, getattr(data, "classes", None) or ()))
        return _of_rows(rows, where, classes)
    if isinstance(data, Iterable) and not isinstance(data, str | np.ndarray | Tensor):
        batches = [_row(batch, image_key, label_key, where) for batch in data]
        if batches:
            return _of_batches(batches, where)
    raise DataError(
        f"{where} is a {type(data).__name__}; allowed are (X, y), a torch Dataset, a Hugging Face dataset, a dict of "
        "columns, a pandas frame with a label column, or a list of batches"
    )


def _of_rows(rows: list[tuple[Any, Any]], where: str, classes: tuple[str, ...] = ()) -> Columns:
    return Columns(where, [x for x, _ in rows], [_scalar(y) for _, y in rows], classes)


def _of_batches(batches: list[tuple[Any, Any]], where: str) -> Columns:
    """From batches, or from examples: those of an IterableDataset or of a list."""
    labels = [_raw(y) for _, y in batches]
    if not any(each.ndim for each in labels):
        return _of_rows(batches, where)
    try:
        return Columns(where, torch.cat([torch.as_tensor(x) for x, _ in batches]), np.concatenate(labels))
    except (RuntimeError, TypeError, ValueError) as error:
        raise DataError(
            f"{where}: batches need inputs (b, …) of one shape and labels (b,): {error}; resize or pad the inputs"
        ) from error


def _frame_inputs(frame: Any, where: str) -> NDArray[Any]:
    """The values of a frame: as they are if pandas has one type of number for all columns, else as floats."""
    for position, name in enumerate(frame.columns):
        column = frame.iloc[:, position]  # names may occur twice
        missing = np.flatnonzero(column.isna().to_numpy())
        if len(missing):
            raise DataError(
                f"{where}: column {name!r} has no value in row {int(missing[0])} ({len(missing)} such rows); fill them "
                "in, or remove the rows or the column"
            )
        numbers = column.dtype.kind in "biufc" or all(isinstance(value, int | float | np.number) for value in column)
        if not numbers:
            raise DataError(
                f"{where}: inputs must be numbers, and column {name!r} is {column.dtype}, such as {column.iloc[0]!r}; "
                "encode text columns as numbers first, or remove them"
            )
    values: NDArray[Any] = frame.to_numpy()
    return frame.to_numpy(dtype=np.float64) if values.dtype.kind == "O" else values


def _row(item: Any, image_key: str | None, label_key: str | None, where: str) -> tuple[Any, Any]:
    """Input and label of one example or one batch."""
    if isinstance(item, Mapping):
        image, label = _keys(image_key, label_key, list(item), where)
        return item[image], item[label]
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    raise DataError(
        f"{where}: an item must be (input, label) or a dict, got a {type(item).__name__}; for arrays write (X, y)"
    )


def _keys(image_key: str | None, label_key: str | None, names: list[str], where: str) -> tuple[str, str]:
    return (
        find_column(image_key, IMAGE_KEYS, names, f"{where}: image_key"),
        find_column(label_key, LABEL_KEYS, names, f"{where}: label_key"),
    )


def find_column(given: str | None, usual: tuple[str, ...], names: list[str], where: str) -> str:
    """The column that the caller names, or the first of the usual names that the data have."""
    found = [name for name in ([given] if given is not None else usual) if name in names]
    if not found:
        wanted = repr(given) if given is not None else " or ".join(map(repr, usual))
        raise DataError(
            f"{where}: there is no column {wanted}; name one of the columns {', '.join(map(str, names)) or '(none)'}"
        )
    return found[0]


def _examples(columns: Columns, classes: tuple[str, ...]) -> Examples:
    where = columns.where
    inputs, labels = _inputs(columns.inputs, where), label_numbers(columns.labels, classes, where)
    if len(inputs) != len(labels):
        raise DataError(f"{where}: {len(inputs)} inputs but {len(labels)} labels; each input needs one label")
    check_finite(inputs, where)  # before the split, so that the index is one of the caller's
    return Examples(inputs, labels)


def _inputs(given: Any, where: str) -> Tensor:
    """Inputs as a tensor: images in [0, 1] with channels first, floats as float32, other integers as int64."""
    if isinstance(given, list | tuple) and given and not isinstance(given[0], int | float):
        try:
            given = torch.stack(
                [each if isinstance(each, Tensor) else torch.tensor(np.asarray(each)) for each in given]
            )
        except (RuntimeError, TypeError, ValueError) as error:
            raise DataError(
                f"{where}: inputs must be numbers of equal shapes: {error}; resize or pad them to one shape"
            ) from error
    try:
        tensor = given.detach().cpu() if isinstance(given, Tensor) else torch.tensor(np.asarray(given))
    except TypeError as error:
        kind = getattr(np.asarray(given), "dtype", type(given).__name__)
        raise DataError(f"{where}: inputs must be numbers, got {kind}; encode text columns as numbers first") from error
    if tensor.is_complex() or 0 in tensor.shape[1:]:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise DataError(
            f"{where}: inputs must be real numbers, at least one per example, got {kind} of shape "
            f"{tuple(tensor.shape)}; give an array (n, …) of features or pixels"
        )
    if tensor.ndim < 1:
        raise DataError(f"{where}: inputs must be an array with one row per example, got a single number")
    if tensor.dtype == torch.uint8:
        if tensor.ndim == 4 and tensor.shape[3] in CHANNELS and tensor.shape[1] not in CHANNELS:
            tensor = tensor.permute(0, 3, 1, 2)
        return (tensor.unsqueeze(1) if tensor.ndim == 3 else tensor).to(torch.float32).div_(255).contiguous()
    if tensor.dtype == torch.float64:
        return torch.from_numpy(to_float32(tensor.numpy(), where))
    if tensor.is_floating_point() or tensor.dtype == torch.bool:
        return tensor.to(torch.float32)
    return tensor.to(torch.int64)


def _raw(labels: Any) -> np.ndarray:
    return labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)


def _scalar(label: Any) -> Any:
    return label.item() if isinstance(label, Tensor | np.generic) else label


def _copied(examples: Examples) -> Examples:
    """Without indices, so that the caller's arrays are neither changed nor shared."""
    if examples.indices is None:
        return Examples(examples.inputs.clone(), examples.labels)
    return Examples(examples.inputs[examples.indices], examples.all_labels())


def _joined(parts: list[Examples]) -> Examples:
    parts = [_copied(part) for part in parts]
    return Examples(torch.cat([part.inputs for part in parts]), torch.cat([part.labels for part in parts]))


def _named(data: Dataset, parts: tuple[Any, ...] = ()) -> Dataset:
    """The data set under a name that identifies its content."""
    tensors: dict[str, Tensor] = {}
    for name, examples in (("train", data.train), ("test", data.test)):
        stored = examples if examples.prepare is not None else _copied(examples)
        tensors |= {f"{name}.inputs": stored.inputs, f"{name}.labels": examples.all_labels()}
    tensors |= {f"part.{k}": torch.from_numpy(part) for k, part in enumerate(parts)}
    sha = digest(tensors)
    return replace(data, name=f"{PREFIX}{sha[:16]}", provenance={**data.provenance, "source": "memory", "sha256": sha})
