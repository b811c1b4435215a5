"""What everybody who shares a model has to agree on about data that nobody sees together: class list, normalisation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from spherefed.data.dataset import Dataset
from spherefed.data.examples import Examples, Preparation
from spherefed.errors import DataError
from spherefed.schema import nearest


@dataclass(frozen=True, kw_only=True, slots=True)
class Convention:
    """How data are to be read, whoever has them; what is empty is left as the files have it."""

    classes: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def applied(self, data: Dataset) -> Dataset:
        """The data set with these classes in this order, whichever of them it has, and with this normalisation."""
        if self.classes:
            data = _with_classes(data, self.classes)
        return _with_normalization(data, self.mean, self.std) if self.mean else data


def normalization(data: Dataset) -> str:
    """How inputs are prepared, as a text that can be compared."""
    prepare = data.train.prepare
    if prepare is None:
        return "as stored"
    return f"scale {prepare.scale:.9g}, mean {_numbers(prepare.mean)}, std {_numbers(prepare.std)}"


def without_examples(classes: Sequence[str], input_shape: Sequence[int]) -> Dataset:
    """The form of data that are elsewhere."""
    nothing = Examples(torch.zeros(0, *input_shape), torch.zeros(0, dtype=torch.int64))
    return Dataset(name="sites", train=nothing, test=nothing, classes=tuple(classes), elsewhere=True)


def _with_classes(data: Dataset, classes: tuple[str, ...]) -> Dataset:
    if data.numbered:
        if data.num_classes > len(classes):
            raise DataError(
                f"{data.name} has labels up to {data.num_classes - 1}, data.classes names only {len(classes)} classes"
            )
        return replace(data, classes=classes)
    for name in data.classes:
        if name not in classes:
            raise DataError(
                f"{data.name} has a class {name!r} that data.classes does not name; {nearest(name, classes)}"
            )
    number = torch.tensor([classes.index(name) for name in data.classes])
    train, test = (replace(part, labels=number[part.labels]) for part in (data.train, data.test))
    return replace(data, classes=classes, train=train, test=test)


def _with_normalization(data: Dataset, mean: tuple[float, ...], std: tuple[float, ...]) -> Dataset:
    channels = data.input_shape[0]
    if len(mean) != channels:
        raise DataError(f"{data.name} has {channels} channels, data.mean has {len(mean)} numbers")
    scale = 1.0 if data.train.prepare is None else data.train.prepare.scale
    prepare = Preparation(scale=scale, mean=mean, std=std)
    return replace(data, train=replace(data.train, prepare=prepare), test=replace(data.test, prepare=prepare))


def _numbers(values: Sequence[float]) -> str:
    return "/".join(f"{value:.9g}" for value in values)
