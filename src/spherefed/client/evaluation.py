"""Counts of answers. Counts add over clients; accuracies and other measures are computed from them last."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any

import torch
from torch import Tensor

from spherefed.client.local_model import LocalModel
from spherefed.data.examples import Examples
from spherefed.messages import ModelState
from spherefed.nn.classifier import Classifier
from spherefed.tensors import one_thread

# Every accuracy says which model, on which data, in which weighting.
GLOBAL_TEST = "global_model/global_test"
LOCAL_TEST_BY_SAMPLES = "global_model/local_test/by_samples"
LOCAL_TEST_BY_CLIENTS = "global_model/local_test/by_clients"

PERSONAL_TEST_BY_SAMPLES = "personal_model/local_test/by_samples"
PERSONAL_TEST_BY_CLIENTS = "personal_model/local_test/by_clients"

BATCH_SIZE = 500
LOGGER = logging.getLogger("spherefed")
NAN_SCORES = (
    "the model's scores are NaN for %d of %d test examples, so its accuracy means nothing: "
    "check that the encoder returns finite features in eval mode, or lower local.lr if the training diverged"
)


@dataclass(frozen=True, slots=True)
class Counts:
    """Correct answers of a model on some examples."""

    correct: int
    total: int
    by_class: Tensor | None = field(default=None, compare=False, repr=False)
    """(3, C) int64: for each class, its correct answers, its examples, and the answers that name it."""

    @property
    def accuracy(self) -> float:
        return self.correct / self.total


def global_accuracy(local_model: LocalModel, model: ModelState, test: Examples) -> float | None:
    """Accuracy of this state on the test set; None where `global_counts` is None."""
    counts = global_counts(local_model, model, test)
    return None if counts is None else counts.accuracy


def global_counts(local_model: LocalModel, model: ModelState, test: Examples) -> Counts | None:
    """Answers of this state on the test set; None without a test set or without a whole model (a part is private)."""
    if not len(test) or local_model.private:
        return None
    with one_thread():
        local_model.load_state(model)
        local_model.set_training(False)
        return count_correct(local_model.classifier, test, local_model.device)


def count_correct(classifier: Classifier, examples: Examples, device: torch.device) -> Counts:
    """Correct answers on these examples, without augmentation, of a classifier in eval mode."""
    assert not classifier.training
    num_classes = classifier.num_classes
    by_class = torch.zeros(3, num_classes, dtype=torch.int64, device=device)
    with torch.inference_mode():
        for inputs, labels in examples.in_order(BATCH_SIZE, device=device):
            answers = classifier(inputs).argmax(dim=1)
            counted = (labels[answers == labels], labels, answers)
            by_class += torch.stack([torch.bincount(classes, minlength=num_classes) for classes in counted])
    return Counts(int(by_class[0].sum()), len(examples), by_class.cpu())


def global_confusion(local_model: LocalModel, model: ModelState, test: Examples) -> Tensor | None:
    """Test examples by true class (row) and answer (column), (C, C) int64; None where `global_counts` is None."""
    if not len(test) or local_model.private:
        return None
    num_classes, num_nan = local_model.classifier.num_classes, 0
    pairs = torch.zeros(num_classes**2, dtype=torch.int64, device=local_model.device)
    with one_thread(), torch.inference_mode():
        local_model.load_state(model)
        local_model.set_training(False)
        for inputs, labels in test.in_order(BATCH_SIZE, device=local_model.device):
            scores = local_model.classifier(inputs)
            num_nan += int(scores.isnan().any(dim=1).sum())
            pairs += torch.bincount(labels * num_classes + scores.argmax(dim=1), minlength=num_classes**2)
    if num_nan:
        LOGGER.warning(NAN_SCORES, num_nan, len(test))
    return pairs.view(num_classes, num_classes).cpu()


def counts_of(confusion: Tensor) -> Counts:
    """The counts of each class from examples by true class and answer.

    >>> counts_of(torch.tensor([[3, 0], [1, 0]])).by_class.tolist()
    [[3, 0], [3, 1], [4, 0]]
    """
    by_class = torch.stack([confusion.diagonal(), confusion.sum(dim=1), confusion.sum(dim=0)])
    return Counts(int(by_class[0].sum()), int(confusion.sum()), by_class)


def global_measures(local_model: LocalModel, model: ModelState, test: Examples) -> dict[str, dict[str, Any]]:
    """Accuracy and other measures on the test set, by their names, for a line of `rounds.jsonl`."""
    if (counts := global_counts(local_model, model, test)) is None:
        return {"accuracy": {}}
    return {"accuracy": {GLOBAL_TEST: counts.correct / counts.total}, "measures": {GLOBAL_TEST: measures(counts)}}


def measures(counts: Counts) -> dict[str, Any]:
    """Balanced accuracy, macro-F1 and the recall of each class (None for a class without examples).

    Recall of class c is correct_c / examples_c, and balanced accuracy is its mean over classes with examples. Macro-F1
    is the mean of 2·correct_c / (examples_c + answers_c) over classes with examples or answers, as in scikit-learn.

    >>> measures(Counts(3, 4, torch.tensor([[3, 0], [3, 1], [4, 0]])))
    {'balanced_accuracy': 0.5, 'macro_f1': 0.42857142857142855, 'recall': [1.0, 0.0]}
    """
    assert counts.by_class is not None, "counts of a model have classes"
    columns = counts.by_class.T.tolist()
    recall = [correct / examples if examples else None for correct, examples, _ in columns]
    f1 = [2 * correct / (examples + answers) for correct, examples, answers in columns if examples + answers]
    return {"balanced_accuracy": fmean(r for r in recall if r is not None), "macro_f1": fmean(f1), "recall": recall}


def pooled_counts(counts: Iterable[Counts]) -> Counts | None:
    """The sum over clients; None if no client has an example, or a client does not tell the counts of its classes."""
    parts = [c for c in counts if c.total]
    tables = [c.by_class for c in parts if c.by_class is not None]
    if not tables or len(tables) < len(parts):
        return None
    return Counts(sum(c.correct for c in parts), sum(c.total for c in parts), torch.stack(tables).sum(dim=0))


def local_accuracies(counts: Iterable[Counts], *, personal: bool = False) -> dict[str, float]:
    """Accuracy over the clients' own held-out examples: all examples alike, and all clients alike.

    `personal`: each client answered with a model of its own, not all with the global one.

    >>> local_accuracies([Counts(1, 1), Counts(0, 3)])
    {'global_model/local_test/by_samples': 0.25, 'global_model/local_test/by_clients': 0.5}
    """
    nonempty = [c for c in counts if c.total]
    if not nonempty:
        return {}
    total = Counts(sum(c.correct for c in nonempty), sum(c.total for c in nonempty))
    by_clients = sum(c.accuracy for c in nonempty) / len(nonempty)
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
