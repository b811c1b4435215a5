"""Accuracies against counts made by hand."""

from typing import Any

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, recall_score
from torch import nn

from spherefed.client.evaluation import (
    BATCH_SIZE,
    Counts,
    count_correct,
    global_accuracy,
    local_accuracies,
    measures,
    pooled_counts,
    spread_over_clients,
)
from spherefed.data.examples import Examples
from spherefed.experiment import Model
from spherefed.nn.classifier import Classifier
from spherefed.nn.encoders import Mlp
from spherefed.nn.heads import ClassifierHead, Learned
from spherefed.server.algorithms import fedrep
from support.small import CPU, assembled


def identity_classifier() -> Classifier:
    """Its scores are its inputs."""
    head = ClassifierHead(torch.eye(3), learned=False)
    return Classifier(nn.Identity(), head, num_classes=3, normalize=False).eval()


@pytest.mark.parametrize("num", [0, 1, 5, 2 * BATCH_SIZE + 1])
def test_right_answers_are_counted_over_all_batches(num: int) -> None:
    scores = torch.randn(num, 3, generator=torch.Generator().manual_seed(num))
    labels = torch.arange(num) % 3
    right = sum(max(range(3), key=row.__getitem__) == label for row, label in zip(scores.tolist(), labels, strict=True))
    assert count_correct(identity_classifier(), Examples(scores, labels), CPU) == Counts(right, num)


def test_a_model_is_evaluated_in_eval_mode_only() -> None:
    with pytest.raises(AssertionError):
        count_correct(identity_classifier().train(), Examples(torch.ones(1, 3), torch.zeros(1, dtype=torch.int64)), CPU)


def test_the_global_accuracy_is_that_of_the_state_and_needs_a_test_set_and_a_whole_model() -> None:
    assembly = assembled()
    model, test = assembly.initial(), assembly.dataset.test
    found = global_accuracy(assembly.local_model, model, test)
    classifier = assembly.local_model.classifier.eval()
    right = sum(int(classifier(test.inputs[i : i + 1]).argmax()) == int(test.labels[i]) for i in range(len(test)))
    assert found == right / len(test)
    assert global_accuracy(assembly.local_model, model, test.take(torch.zeros(0, dtype=torch.int64))) is None
    learned = Model(encoder=Mlp(widths=(8,)), head=Learned())
    private = assembled(algorithm=fedrep(), calibration=None, model=learned)
    assert global_accuracy(private.local_model, private.initial(), test) is None


@pytest.mark.parametrize(
    ("counts", "by_samples", "by_clients"),
    [
        ([Counts(1, 1), Counts(0, 3)], 0.25, 0.5),
        ([Counts(1, 1), Counts(0, 0), Counts(0, 3)], 0.25, 0.5),  # a client without examples does not count
        ([Counts(2, 4)], 0.5, 0.5),
    ],
)
@pytest.mark.parametrize("personal", [False, True])
def test_examples_or_clients_are_weighed_alike(
    counts: list[Counts], by_samples: float, by_clients: float, personal: bool
) -> None:
    found = local_accuracies(counts, personal=personal)
    assert {name.rpartition("/")[2]: value for name, value in found.items()} == {
        "by_samples": by_samples,
        "by_clients": by_clients,
    }
    assert all(("personal" in name) == personal for name in found)


def test_nobody_with_an_example_has_no_accuracy() -> None:
    assert local_accuracies([Counts(0, 0)]) == {}
    nobody: dict[str, Any] = spread_over_clients([4], [Counts(0, 0)])
    assert nobody == {"clients": {}}


def test_the_spread_is_over_the_whole_population() -> None:
    found = spread_over_clients([3, 1, 7], [Counts(1, 1), Counts(0, 3), Counts(1, 2)])
    mean = (1 + 0 + 0.5) / 3
    variance = ((1 - mean) ** 2 + mean**2 + (0.5 - mean) ** 2) / 3
    assert found["clients"] == {3: 1.0, 1: 0.0, 7: 0.5}
    assert found["mean"] == pytest.approx(mean)
    assert found["std"] == pytest.approx(variance**0.5)


def answered(labels: list[int], answers: list[int], num_classes: int) -> Counts:
    """Counts of a classifier that gives these answers."""
    head = ClassifierHead(torch.eye(num_classes), learned=False)
    classifier = Classifier(nn.Identity(), head, num_classes=num_classes, normalize=False).eval()
    scores = torch.eye(num_classes)[answers] if answers else torch.zeros(0, num_classes)
    return count_correct(classifier, Examples(scores, torch.tensor(labels, dtype=torch.int64)), CPU)


@pytest.mark.parametrize("seed", range(6))
def test_measures_equal_those_of_scikit_learn(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    # Classes 0 to 3 of 6 have examples; class 5 is only answered, class 4 neither.
    labels = [*torch.randint(0, 4, (50,), generator=random).tolist(), 0, 1, 2, 3]
    answers = [5 if a == 4 else a for a in torch.randint(0, 5, (54,), generator=random).tolist()]
    found = measures(answered(labels, answers, 6))
    occurring = sorted({*labels, *answers})
    assert found["macro_f1"] == pytest.approx(f1_score(labels, answers, labels=occurring, average="macro"))
    recall = recall_score(labels, answers, labels=range(4), average=None)
    assert found["recall"] == [*map(pytest.approx, recall), None, None]
    assert found["balanced_accuracy"] == pytest.approx(recall.mean())
    seen = [(y, a) for y, a in zip(labels, answers, strict=True) if a < 4]  # scikit-learn warns about class 5
    known = measures(answered([y for y, _ in seen], [a for _, a in seen], 6))
    assert known["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(*zip(*seen, strict=True)))


def test_counts_of_clients_add_up_to_the_counts_of_all_their_examples() -> None:
    labels, answers = [0, 0, 1, 2, 2, 2, 1], [0, 1, 1, 2, 0, 2, 2]
    parts = [answered(labels[i:j], answers[i:j], 3) for i, j in ((0, 2), (2, 2), (2, 7))]
    whole, pooled = answered(labels, answers, 3), pooled_counts(parts)
    assert pooled == whole == Counts(4, 7)
    assert measures(pooled) == measures(whole)
    assert pooled_counts([answered([], [], 3)]) is None
    assert pooled_counts([*parts, Counts(1, 2)]) is None  # a site that does not tell the counts of its classes


def test_a_model_that_knows_only_the_frequent_class_has_a_high_accuracy_and_a_low_balanced_one() -> None:
    counts = answered([0] * 99 + [1], [0] * 100, 2)
    assert counts.accuracy == 0.99
    assert measures(counts) == {
        "balanced_accuracy": 0.5,
        "macro_f1": pytest.approx(198 / 199 / 2),
        "recall": [1.0, 0.0],
    }
