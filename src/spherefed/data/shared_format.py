"""Class list and normalization that all sites of a federation must share, although no site sees all data."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from spherefed.data.dataset import Dataset
from spherefed.data.examples import Examples, Preparation
from spherefed.errors import DataError
from spherefed.schema import suggest


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedFormat:
    """Class list and normalization for the data of every site. Empty fields keep the values of the site's files."""

    classes: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    owner: str = "data.mean"
    """What has the normalization, for error messages."""
    class_list: str = "data.classes"
    """What has the class list, for error messages."""

    def apply_to(self, data: Dataset) -> Dataset:
        """The data set with this class list, of which it may have only a part, and with this normalization."""
        if self.classes:
            data = _with_classes(data, self.classes, self.class_list)
        return self._with_normalization(data) if self.mean else data

    def _with_normalization(self, data: Dataset) -> Dataset:
        channels = data.input_shape[0]
        if len(self.mean) != channels:
            what = f"{data.name} has {channels} channels, but {self.owner} is for {len(self.mean)}"
            raise DataError(f"{what}; {self._remedy(channels)}")
        scale = 1.0 if data.train.prepare is None else data.train.prepare.scale
        prepare = Preparation(scale=scale, mean=self.mean, std=self.std)
        return replace(data, train=replace(data.train, prepare=prepare), test=replace(data.test, prepare=prepare))

    def _remedy(self, channels: int) -> str:
        if channels == 1 and len(self.mean) == 3:
            return f"repeat the channel of grey images, np.repeat(images[:, None], 3, axis=1), or change {self.owner}"
        return f"change {self.owner}, or give images with {len(self.mean)} channels"


def normalization(data: Dataset) -> str:
    """The normalization of inputs as text, for comparison between sites."""
    prepare = data.train.prepare
    if prepare is None:
        return "as stored"
    return f"scale {prepare.scale:.9g}, mean {_numbers(prepare.mean)}, std {_numbers(prepare.std)}"


def without_examples(classes: Sequence[str], input_shape: Sequence[int]) -> Dataset:
    """A data set without examples, for a server whose sites keep the data."""
    empty = Examples(torch.zeros(0, *input_shape), torch.zeros(0, dtype=torch.int64))
    return Dataset(name="sites", train=empty, test=empty, classes=tuple(classes), remote=True)


def _with_classes(data: Dataset, classes: tuple[str, ...], owner: str) -> Dataset:
    if data.unnamed_classes:
        if data.num_classes > len(classes):
            raise DataError(
                f"{data.name} has labels up to {data.num_classes - 1}, but {owner} has only {len(classes)} classes"
            )
        return replace(data, classes=classes)
    for name in data.classes:
        if name not in classes:
            raise DataError(f"{data.name} has a class {name!r} that is not in {owner}; {suggest(name, classes)}")
    new_labels = torch.tensor([classes.index(name) for name in data.classes])
    train, test = (replace(part, labels=new_labels[part.labels]) for part in (data.train, data.test))
    return replace(data, classes=classes, train=train, test=test)


def _numbers(values: Sequence[float]) -> str:
    return "/".join(f"{value:.9g}" for value in values)
