"""Statistics and evaluations collected from clients, with clients that send what cannot be."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from spherefed.calibration import Ffc
from spherefed.errors import FederationError
from spherefed.messages import EvaluateReply, Failure, MeasureReply, Reply
from spherefed.server.collection import evaluate_on_clients
from support.fleets import Only, Tamper, Tampered
from support.small import assembled, calibrated, in_process


def moments(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Tamper:
    def tamper(answer: Reply | Failure) -> list[Reply | Failure]:
        assert isinstance(answer, MeasureReply)
        return [replace(answer, moments=change(dict(answer.moments)))] if answer.client == 0 else [answer]

    return tamper


def narrow(_: dict[str, Tensor]) -> dict[str, Tensor]:
    """Statistics that hold together but belong to a model of two features."""
    return {
        "counts": torch.tensor([1, 0]),
        "gram": torch.tensor([2**40, 0, 0]),
        "cross": torch.tensor([[2**20, 0, 0], [0, 0, 0]]),
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m | {"gram": 2 * m["gram"]},
        lambda m: m | {"gram": m["gram"].double()},
        lambda m: m | {"cross": m["cross"][:, :-1]},
        lambda m: {},
        narrow,
    ],
)
def test_forged_moments_are_refused_and_the_others_solved(
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]],
) -> None:
    """Client 0 answers first, so that its shapes must not become everybody's."""
    assembly = assembled()
    model, fleet = assembly.initial(), in_process(assembly)
    got = calibrated(assembly, Tampered(fleet, moments(change)), model)
    rest = calibrated(assembly, Only(fleet, [1, 2, 3]), model)
    assert got.model.digest() == rest.model.digest()
    assert [(r.round, r.client) for r in got.rejected] == [(3, 0)]


def test_a_calibration_that_nobody_answers_is_an_error() -> None:
    assembly = assembled()
    model, fleet = assembly.initial(), in_process(assembly)
    with pytest.raises(FederationError, match="calibration"):
        calibrated(assembly, Tampered(fleet, lambda a: [Failure(a.client, "no")]), model)


def test_calibration_over_clients_equals_calibration_on_the_pooled_data() -> None:
    from spherefed.calibration.ffc import statistics

    assembly = assembled()
    model = assembly.initial()
    got = calibrated(assembly, in_process(assembly), model, Ffc(ridge=0.1))
    assembly.local_model.load_state(model)
    train = assembly.dataset.train
    # One batch per client, as clients cut them: an encoder may give other bits for other batch sizes.
    batches = [(train.inputs[part], train.labels[part]) for part in assembly.partition.parts]
    pooled = statistics(assembly.local_model.classifier, batches).solve(0.1)
    assert got.model.head is not None
    assert torch.equal(got.model.head["weight"], pooled.weight.float())
    assert got.summary == pooled.summary()


def test_counts_of_held_out_examples_are_checked() -> None:
    from spherefed.experiment import Data

    assembly = assembled(data=Data(held_out=0.3))
    model, fleet = assembly.initial(), in_process(assembly)

    def tamper(answer: Reply | Failure) -> list[Reply | Failure]:
        assert isinstance(answer, EvaluateReply)
        return [replace(answer, correct=answer.num_examples + 1)] if answer.client == 2 else [answer]

    honest = evaluate_on_clients(fleet, model, 3, num_classes=3)
    got = evaluate_on_clients(Tampered(fleet, tamper), model, 3, num_classes=3)
    assert got.counts == tuple(c for i, c in enumerate(honest.counts) if i != 2)
    assert [r.client for r in got.rejected] == [2]
    assert sum(c.total for c in honest.counts) == sum(int(len(p) * 0.3) for p in assembly.partition.parts)


def test_counts_of_another_number_of_classes_are_rejected() -> None:
    from spherefed.experiment import Data

    assembly = assembled(data=Data(held_out=0.3))
    fleet = in_process(assembly)

    def tamper(answer: Reply | Failure) -> list[Reply | Failure]:
        assert isinstance(answer, EvaluateReply)
        wider = torch.nn.functional.pad(answer.classes["counts"], (0, 2))
        return [replace(answer, classes={"counts": wider})] if answer.client == 1 else [answer]

    got = evaluate_on_clients(Tampered(fleet, tamper), assembly.initial(), 3, num_classes=3)
    assert 1 not in got.clients
    assert [(r.client, r.cause) for r in got.rejected] == [(1, "counts of 5 classes, the model has 3")]
