"""Counting right answers. Counts add over clients; an accuracy is made from them last and carries its full name."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from spherefed.data.examples import Examples
from spherefed.nn.classifier import Classifier

# Every accuracy says which model, on which data, in which weighting.
GLOBAL_TEST = "global_model/global_test"
LOCAL_TEST_BY_SAMPLES = "global_model/local_test/by_samples"
LOCAL_TEST_BY_CLIENTS = "global_model/local_test/by_clients"

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
    """Right answers on these examples, in eval mode and without augmentation."""
    classifier.eval()
    correct = torch.zeros((), dtype=torch.int64, device=device)
    with torch.inference_mode():
        for inputs, labels in examples.in_order(BATCH_SIZE, device=device):
            correct += (classifier(inputs).argmax(dim=1) == labels).sum()
    return Counts(int(correct), len(examples))


def local_accuracies(counts: Iterable[Counts]) -> dict[str, float]:
    """Accuracy over the clients' own held-out examples: all examples alike, and all clients alike.

    >>> local_accuracies([Counts(1, 1), Counts(0, 3)])
    {'global_model/local_test/by_samples': 0.25, 'global_model/local_test/by_clients': 0.5}
    """
    held = [c for c in counts if c.total]
    if not held:
        return {}
    total = Counts(sum(c.correct for c in held), sum(c.total for c in held))
    return {
        LOCAL_TEST_BY_SAMPLES: total.accuracy,
        LOCAL_TEST_BY_CLIENTS: sum(c.accuracy for c in held) / len(held),
    }
