"""Labels of a user's data, class numbers or texts, as int64 class numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spherefed.errors import DataError

MAX_CLASSES = 65_536
"""More than any data set has: identifiers that were taken for class numbers."""
NUMBERS = (int, float, np.number, np.bool_)


def class_names(parts: Sequence[Any], names: tuple[str, ...] = ()) -> tuple[tuple[str, ...], bool]:
    """All classes of these labels in the order of their numbers, and whether the labels are numbers without names.

    >>> class_names([["dog", "cat"], ["cat"]])
    (('cat', 'dog'), False)
    >>> class_names([[0, 2]])
    (('0', '1', '2'), True)
    """
    arrays = [_array(part, "labels") for part in parts]
    texts = [array[0] for array in arrays if array.size and _is_text(array)]
    numbers = [array[0] for array in arrays if array.size and not _is_text(array)]
    if texts and numbers:
        raise DataError(
            f"labels: some parts have texts, such as {str(texts[0])!r}, and others numbers, such as {numbers[0]}; give "
            "texts or class numbers in all of them"
        )
    if texts:
        return tuple(sorted({str(label) for array in arrays for label in array})), False
    most = max((int(array.max()) for array in arrays if array.size), default=-1)
    least = min((int(array.min()) for array in arrays if array.size), default=0)
    if least < 0:
        raise DataError(f"labels: class numbers are 0, 1, 2, …; got {least}; number the classes from 0, or use texts")
    if names and most < len(names):
        return names, False
    if most >= MAX_CLASSES:
        raise DataError(
            f"labels: class numbers are 0, 1, 2, … below {MAX_CLASSES:,}, got {most}; number the classes from 0, "
            "or use texts"
        )
    return tuple(str(number) for number in range(most + 1)), True


def check_classes(classes: tuple[str, ...], where: str, min_classes: int = 2) -> None:
    """Raise DataError for a single class; `min_classes` is 1 at a site, because others may have the other classes."""
    if len(classes) == 1 < min_classes:
        raise DataError(
            f"{where}: a classifier needs at least {min_classes} classes, got only {classes[0]!r}; add examples of "
            "others"
        )


def are_numbers(labels: Any, where: str) -> bool:
    """Whether there are labels, and they are class numbers."""
    array = _array(labels, where)
    return bool(array.size) and not _is_text(array)


def renumbered(labels: Any, names: tuple[str, ...], classes: tuple[str, ...], where: str) -> NDArray[Any]:
    """Labels that number the classes `names`, as numbers of `classes`, which has these names too; texts stay.

    >>> renumbered([0, 1, 1], ("dog", "horse"), ("cat", "dog", "horse"), "test").tolist()
    [1, 2, 2]
    """
    array = _array(labels, where)
    if _is_text(array):
        return array
    _check_range(array, len(names), f"{where}, whose labels number its own classes {', '.join(names)}")
    return np.array([classes.index(name) for name in names], dtype=np.int64)[array.astype(np.int64)]


def label_numbers(labels: Any, classes: tuple[str, ...], where: str) -> Tensor:
    """Class numbers (n,) of labels that are texts or class numbers."""
    array = _array(labels, where)
    if _is_text(array):
        numbers = {name: number for number, name in enumerate(classes)}
        unknown = [str(label) for label in array if str(label) not in numbers]
        if unknown:
            raise DataError(f"{where}: label {unknown[0]!r} is not one of the classes {', '.join(classes)}")
        return torch.tensor([numbers[str(label)] for label in array], dtype=torch.int64)
    _check_range(array, len(classes), where)
    return torch.from_numpy(array.astype(np.int64))


def _check_range(array: NDArray[Any], num_classes: int, where: str) -> None:
    if array.size and (array.min() < 0 or array.max() >= num_classes):
        raise DataError(f"{where}: labels must be in 0..{num_classes - 1}, got {array.min()}..{array.max()}")


def _array(labels: Any, where: str) -> np.ndarray:
    if isinstance(labels, list | tuple) and len({isinstance(label, str) for label in labels}) > 1:
        labels = np.array(labels, dtype=object)  # numpy would turn numbers among texts, and None, into texts
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.ndim != 1:
        raise DataError(
            f"{where}: labels must be one-dimensional, one class per example, got shape {array.shape}; "
            "flatten them, or take the argmax of one-hot rows"
        )
    if array.dtype.kind == "O" and array.size and all(isinstance(label, NUMBERS) for label in array):
        array = array.astype(np.float64)
    if array.dtype.kind == "f" and len(missing := np.flatnonzero(~np.isfinite(array))):
        raise DataError(
            f"{where}: labels must be texts or whole numbers, got {array[missing[0]]} at index {missing[0]} "
            f"({len(missing)} such labels); replace or remove such examples"
        )
    if array.dtype.kind == "f" and np.array_equal(array, np.round(array)):
        return array.astype(np.int64)
    if array.dtype.kind == "O" and not all(isinstance(label, str) for label in array):
        others = [label for label in array if not isinstance(label, str)]
        bad = next((label for label in others if not isinstance(label, NUMBERS)), others[0])
        raise DataError(f"{where}: labels must be texts or whole numbers, got {bad!r}; replace or remove such examples")
    if array.dtype.kind not in "uibOUT":
        raise DataError(
            f"{where}: labels must be texts or whole numbers, got {array.dtype} such as {array[0]}; "
            "convert them, for example with y.astype(int)"
        )
    return array


def _is_text(array: np.ndarray) -> bool:
    return array.dtype.kind in "OUT"
