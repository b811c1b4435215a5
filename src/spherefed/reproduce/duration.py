"""How long items take on this machine, from a few measured steps of every network that they train."""

import functools
import time
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from spherefed.acceleration.passes import training_pass
from spherefed.assembly import build_classifier
from spherefed.client.training import LocalTraining
from spherefed.data.sources import SOURCES
from spherefed.experiment import Experiment
from spherefed.reproduce.item import Item
from spherefed.tensors import one_thread

STEPS = 2
MAX_BATCH = 16
"""Images per measured step at most: a step of 64 images of TinyImageNet would take seconds."""
SHAPES = {"digits": (1, 8, 8), "cifar100": (3, 32, 32), "tiny-imagenet": (3, 64, 64)}


def item_seconds(item: Item) -> float:
    """Time of the trainings of one seed of an item, on one core, without the short ones on a frozen encoder."""
    trainings = [training for training in item.trainings() if not training.model.frozen]
    return sum(num_images(training) * _seconds_per_image(*_network(training)) for training in trainings)


def num_shared(item: Item, items: Sequence[Item]) -> int:
    """How many trainings of an item other items need as well."""
    others = {training.digest() for other in items if other.name != item.name for training in other.trainings()}
    return sum(training.digest() in others for training in item.trainings())


def num_images(experiment: Experiment) -> int:
    """Images that pass through a network in all rounds of a training."""
    source = SOURCES[experiment.data.name]
    everything = source.num_train + (source.num_test if experiment.data.pooled else 0)
    stored = experiment.data.examples or everything
    share = 1.0 if experiment.cohort is None else experiment.cohort / experiment.partition.clients
    epochs = experiment.local_training.epochs + experiment.local_training.head_epochs
    return round(experiment.rounds * epochs * stored * (1 - experiment.data.held_out) * share)


def times(scales: Mapping[str, Sequence[Item]]) -> dict[str, dict[str, float]]:
    """Scale → item → seconds per seed."""
    return {scale: {item.name: item_seconds(item) for item in items} for scale, items in scales.items()}


def _network(experiment: Experiment) -> tuple[Experiment, tuple[int, ...]]:
    """What the time of a step depends on, as an experiment with everything else at its default."""
    shape = SHAPES[experiment.data.name]
    if experiment.data.resize is not None:
        shape = (shape[0], experiment.data.resize, experiment.data.resize)
    plain = Experiment(
        name="speed",
        rounds=1,
        local=LocalTraining(lr=0.01, batch_size=experiment.local_training.batch_size),
        model=type(experiment.model)(encoder=experiment.model.encoder),
        precision=experiment.precision,
    )
    return plain, shape


@functools.cache
def _seconds_per_image(experiment: Experiment, shape: tuple[int, ...]) -> float:
    """Measured on forward and backward passes of a few images, after one for warming up; in this process's time."""
    classifier = build_classifier(experiment, shape, 100 if shape[0] == 3 else 10)
    forward = training_pass(classifier, precision=experiment.precision)
    size = min(experiment.local_training.batch_size, MAX_BATCH)
    inputs, labels = torch.zeros(size, *shape), torch.zeros(size, dtype=torch.int64)
    with one_thread():
        for step in range(STEPS + 1):
            if step == 1:
                began = time.process_time()
            _, scores = forward(inputs)
            torch.autograd.backward(nn.functional.cross_entropy(scores, labels))
    return (time.process_time() - began) / (STEPS * size)


def in_words(seconds: float) -> str:
    """A duration with its unit, two digits.

    >>> in_words(7), in_words(130), in_words(9000), in_words(7e6)
    ('7 s', '2.2 min', '2.5 h', '81 days')
    """
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{float(f'{seconds / size:.2g}'):g} {unit}"
    return f"{seconds:.2g} s"
