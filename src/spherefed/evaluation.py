"""Counting right answers. Counts add over clients; an accuracy is made from them last and carries its full name."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

import torch

from spherefed.data.examples import Examples
from spherefed.nn.classifier import Classifier

# Every accuracy says which model, on which data, in which weighting.
GLOBAL_TEST = "global_model/global_test"
LOCAL_TEST_BY_SAMPLES = "global_model/local_test/by_samples"
LOCAL_TEST_BY_CLIENTS = "global_model/local_test/by_clients"

PERSONAL_TEST_BY_SAMPLES = "personal_model/local_test/by_samples"
PERSONAL_TEST_BY_CLIENTS = "personal_model/local_test/by_clients"

BATCH_SIZE = 500


@dataclass(frozen=True, slots=True)
class Counts:
    """Right answers of a model on some examples."""

    correct: int
    total: int

    @property
    def accuracy(self) -> float:
        return self.correct / self.total


def count(classifier: Classifier, examples: Examples, device: torch.device) -> Counts:
    """Right answers on these examples, without augmentation, of a classifier in eval mode."""
    assert not classifier.training
    correct = torch.zeros((), dtype=torch.int64, device=device)
    with torch.inference_mode():
        for inputs, labels in examples.in_order(BATCH_SIZE, device=device):
            correct += (classifier(inputs).argmax(dim=1) == labels).sum()
    return Counts(int(correct), len(examples))


def local_accuracies(counts: Iterable[Counts], *, personal: bool = False) -> dict[str, float]:
    """Accuracy over the clients' own held-out examples: all examples alike, and all clients alike.

    `personal`: each client answered with a model of its own, not all with the global one.

    >>> local_accuracies([Counts(1, 1), Counts(0, 3)])
    {'global_model/local_test/by_samples': 0.25, 'global_model/local_test/by_clients': 0.5}
    """
    held = [c for c in counts if c.total]
    if not held:
        return {}
    total = Counts(sum(c.correct for c in held), sum(c.total for c in held))
    by_clients = sum(c.accuracy for c in held) / len(held)
    if personal:
        return {PERSONAL_TEST_BY_SAMPLES: total.accuracy, PERSONAL_TEST_BY_CLIENTS: by_clients}
    return {LOCAL_TEST_BY_SAMPLES: total.accuracy, LOCAL_TEST_BY_CLIENTS: by_clients}


def spread_over_clients(clients: Iterable[int], counts: Iterable[Counts]) -> dict[str, Any]:
    """The accuracy of every client, and their mean and standard deviation: the paper's mean ± std.

    The clients are the whole population, so the deviation is divided by their number, not by one less (unstated in the
    paper). Clients without a held-out example have no accuracy and are left out.

    >>> spread_over_clients([0, 1, 2], [Counts(1, 1), Counts(0, 3), Counts(0, 0)])
    {'mean': 0.5, 'std': 0.5, 'clients': {0: 1.0, 1: 0.0}}
    """
    each = {client: c.accuracy for client, c in zip(clients, counts, strict=True) if c.total}
    values = list(each.values())
    return {"mean": fmean(values), "std": pstdev(values), "clients": each} if values else {"clients": {}}
