"""Clients stacked into one computation against the same clients one by one."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from spherefed.acceleration import stacked_model
from spherefed.assembly import Assembly, assemble, build_classifier
from spherefed.calibration import Ffc
from spherefed.client.local_model import LocalModel
from spherefed.client.training import LocalTraining
from spherefed.data.augment import CropFlip
from spherefed.data.dataset import Dataset
from spherefed.data.examples import Examples
from spherefed.data.partition import Dirichlet, partition
from spherefed.engines.local import InProcess
from spherefed.errors import ConfigError, RunError
from spherefed.experiment import Experiment, Model, read_experiment
from spherefed.losses import CrossEntropy, MeanSquaredError
from spherefed.messages import Failure, Train, TrainReply
from spherefed.nn.classifier import Classifier
from spherefed.nn.encoders import Mlp, SmallNet
from spherefed.nn.heads import FixedRandom, Learned, Orthonormal
from spherefed.runs.runner import Engine, run, run_to_end
from spherefed.server.algorithms import fednova, fedprox, fedrep, scaffold
from spherefed.server.federation import federate
from spherefed.tensors import digest, non_finite
from support.small import in_double, with_stack

SPHERE = Model(encoder=Mlp(widths=(16,)), head=Orthonormal(), normalize=True)


def experiment(**changes: object) -> Experiment:
    plain = Experiment(
        name="stacked",
        rounds=2,
        partition=Dirichlet(alpha=0.3, clients=12),
        model=Model(encoder=Mlp(widths=(16,))),
        local=LocalTraining(lr=0.1, epochs=2, batch_size=16, momentum=0.9, weight_decay=1e-2),
        cohort=7,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def final_params(assembly: Assembly, stack: int) -> tuple[dict[str, Tensor], list[float]]:
    initial = assembly.initial()
    rounds = list(federate(InProcess(with_stack(assembly, stack).clients), initial, assembly.plan()))
    assembly.local_model.load_state(initial)
    return dict(rounds[-1].model.params), [r.loss for r in rounds]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"local": LocalTraining(lr=0.1, epochs=1, batch_size=32, momentum=0.0, weight_decay=0.0)},
        {"model": SPHERE, "loss": MeanSquaredError()},
        {"model": SPHERE, "loss": CrossEntropy(scale=10.0), "cohort": None},
        {"algorithm": fedprox(0.5)},
        {"algorithm": fednova()},
    ],
)
def test_a_stacked_round_equals_clients_one_by_one(changes: dict[str, object]) -> None:
    single = assemble(experiment(**changes))
    for assembly, tolerance in ((single, 1e-4), (in_double(single), 1e-10)):
        alone, losses = final_params(assembly, 0)
        for size in (2, 5, 12):
            together, losses_together = final_params(assembly, size)
            for name, tensor in alone.items():
                assert torch.allclose(together[name], tensor, rtol=tolerance, atol=tolerance), (size, name)
            assert losses_together == pytest.approx(losses, rel=tolerance), size


def test_augmented_images_are_drawn_as_they_are_for_each_client_alone() -> None:
    rng = np.random.default_rng(0)
    images, labels = torch.from_numpy(rng.normal(size=(40, 3, 32, 32))), torch.from_numpy(rng.integers(3, size=40))
    examples = Examples(images, labels)
    data = Dataset(name="noise", train=examples, test=examples, classes=("a", "b", "c"), augment=CropFlip())
    e = experiment(model=Model(encoder=SmallNet(norm="group")), partition=Dirichlet(clients=4), cohort=None)
    classifier = build_classifier(e, (3, 32, 32), 3).double()
    parts = partition(e.partition, labels.numpy(), 3, rng)
    assembly = Assembly(e, data, parts, LocalModel(classifier))
    request = Train(0, assembly.initial(), 0.05)
    stacks = (0, 3)
    answers = [list(InProcess(with_stack(assembly, stack).clients).ask(range(4), request)) for stack in stacks]
    for alone, together in zip(*answers, strict=True):
        assert isinstance(alone, TrainReply)
        assert isinstance(together, TrainReply)
        assert (alone.client, alone.num_examples) == (together.client, together.num_examples)
        assert alone.effective_steps == together.effective_steps
        for name, delta in alone.delta.items():
            assert torch.allclose(together.delta[name], delta, rtol=1e-9, atol=1e-10), name


@pytest.mark.slow
def test_groups_do_not_depend_on_workers(tmp_path: Path) -> None:
    e = experiment(stack=3)
    results = [run_to_end(e, tmp_path / str(n), engine=Engine(workers=n))["weights_sha256"] for n in (0, 1, 2)]
    assert results[0] == results[1] == results[2]


def test_a_client_that_diverges_does_not_take_its_group_along() -> None:
    assembly = assemble(experiment(rounds=1))
    poisoned = assembly.partition.parts[4]
    assembly.dataset.train.inputs[poisoned] = float("nan")
    request = Train(0, assembly.initial(), 0.1)
    answers = list(InProcess(with_stack(assembly, 12).clients).ask(range(12), request))
    assert [a.client for a in answers if isinstance(a, Failure) or non_finite(a.delta)] == [4]


@pytest.mark.parametrize("position", [0, 700, -1])
def test_an_example_that_is_no_number_spoils_nobody_else_s_short_batch(position: int) -> None:
    """Whatever fills a short batch up weighs nothing, but nothing times NaN is NaN."""
    assembly = assemble(experiment(rounds=1))
    inputs = assembly.dataset.train.inputs
    inputs[position] = float("nan")
    owner = next(k for k, part in enumerate(assembly.partition.parts) if position % len(inputs) in part)
    request = Train(0, assembly.initial(), 0.1)
    answers = list(InProcess(with_stack(assembly, 12).clients).ask(range(12), request))
    assert [a.client for a in answers if isinstance(a, Failure) or non_finite(a.delta)] == [owner]


def test_a_client_that_cannot_train_fails_alone_and_the_others_answer() -> None:
    assembly = assemble(experiment())
    assembly.dataset.train.labels[assembly.partition.parts[4][0]] = 10  # of ten classes, 0 to 9
    request = Train(0, assembly.initial(), 0.1)
    stacks = (0, 5)
    alone, together = ([*InProcess(with_stack(assembly, s).clients).ask(range(12), request)] for s in stacks)
    assert [a.client for a in together] == list(range(12))
    assert [a for a in together if isinstance(a, Failure)] == [a for a in alone if isinstance(a, Failure)]
    assert [a.client for a in together if isinstance(a, Failure)] == [4]


def test_an_error_in_a_group_is_a_failure_of_its_clients_only() -> None:
    assembly = assemble(experiment())
    request = Train(0, replace(assembly.initial(), params={}), 0.1)
    answers = list(InProcess(with_stack(assembly, 5).clients).ask(range(12), request))
    assert [a.client for a in answers] == list(range(12))
    assert all(isinstance(a, Failure) for a in answers)


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": scaffold()},
        {"algorithm": fedrep()},
        {"local": LocalTraining(lr=0.1, head_epochs=1)},
    ],
)
def test_methods_that_remember_or_train_in_phases_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="stack"):
        experiment(stack=4, **changes)
    with pytest.raises(ConfigError, match="stack must not be negative"):
        experiment(stack=-1)


@pytest.mark.parametrize(
    ("size", "changes"),
    [
        (7, {}),
        (10, {"cohort": None}),
        (2, {"cohort": 2}),
        (0, {"cohort": 1}),
        (7, {"model": SPHERE, "loss": MeanSquaredError()}),
        (0, {"model": Model(encoder=Mlp(widths=(256, 256)))}),
        (0, {"model": Model(encoder=SmallNet(norm="group"))}),
        (0, {"algorithm": scaffold()}),
        (0, {"local": LocalTraining(lr=0.1, head_epochs=1)}),
        (0, {"compile": True}),
        (0, {"stack": 0}),
        (3, {"stack": 3}),
    ],
)
def test_where_nobody_says_tiny_models_are_stacked(size: int, changes: dict[str, object]) -> None:
    assembly = assemble(experiment(**changes))
    assert assembly.experiment.stack == size
    stack = assembly.local_model.stacked
    assert (0 if stack is None else stack.size) == size


def test_a_run_keeps_the_number_and_goes_on_with_it(tmp_path: Path) -> None:
    e = experiment(rounds=3)
    whole = run_to_end(e, tmp_path / "whole")
    assert read_experiment(tmp_path / "whole").stack == 7
    rounds = run(e, tmp_path / "stopped")
    next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    for again in (e, read_experiment(tmp_path / "stopped")):  # as it was asked for, and as it was stored
        resumed = run_to_end(again, tmp_path / "stopped", resume=True)
        assert resumed["weights_sha256"] == whole["weights_sha256"]
    with pytest.raises(RunError, match="stack: 7 → 0"):
        run_to_end(replace(e, stack=0), tmp_path / "whole", resume=True)


def test_a_run_keeps_its_number_when_another_is_suggested_by_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = experiment(rounds=3)
    whole = run_to_end(e, tmp_path / "whole")
    rounds = run(e, tmp_path / "stopped")
    next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    monkeypatch.setattr(stacked_model, "GROUP_SIZE", 3)
    assert run_to_end(e, tmp_path / "stopped", resume=True)["weights_sha256"] == whole["weights_sha256"]
    for _ in run(replace(e, calibration=Ffc()), tmp_path / "calibrated", trained=tmp_path / "whole"):
        pass
    assert read_experiment(tmp_path / "calibrated").stack == 7


def test_a_group_that_only_fails_together_is_told_of() -> None:
    assembly = assemble(experiment())
    stacked = with_stack(assembly, 12)
    assert stacked.local_model.stacked is not None
    stacked.local_model.stacked.deltas = None  # type: ignore[assignment] # our error, not a client's
    request = Train(0, assembly.initial(), 0.1)
    with pytest.warns(UserWarning, match="were not stacked, but trained one by one"):
        answers = list(InProcess(stacked.clients).ask(range(12), request))
    assert not [a for a in answers if isinstance(a, Failure)]


def test_a_stack_trains_against_the_head_that_is_sent() -> None:
    assembly = in_double(assemble(experiment(model=SPHERE, loss=MeanSquaredError())))
    head = torch.nn.functional.normalize(torch.randn(10, 16, dtype=torch.float64), dim=1)
    for model in (assembly.initial().with_head(head), assembly.initial()):  # and puts its own back
        request = Train(0, model, 0.1)
        stacks = (0, 12)
        alone, together = ([*InProcess(with_stack(assembly, s).clients).ask(range(12), request)] for s in stacks)
        for one, other in zip(alone, together, strict=True):
            assert isinstance(one, TrainReply)
            assert isinstance(other, TrainReply)
            for name, delta in one.delta.items():
                assert torch.allclose(other.delta[name], delta, rtol=1e-9, atol=1e-12), name


def _frozen() -> nn.Module:
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 6))
    encoder[1].requires_grad_(False)
    return encoder


@pytest.mark.parametrize(
    "encoder",
    [
        nn.Sequential(nn.Flatten(1, 3), nn.Linear(64, 6)),
        nn.Sequential(nn.Flatten(1), nn.Linear(64, 6, bias=False), nn.ReLU()),
        nn.Sequential(nn.Linear(8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 6)),  # a Linear over rows of images
        _frozen(),
    ],
)
@pytest.mark.parametrize("learned", [True, False])
def test_any_chain_of_plain_layers_is_stacked(encoder: nn.Module, learned: bool) -> None:
    head = (Learned() if learned else FixedRandom()).build(10, 6, 0)
    model = Classifier(copy.deepcopy(encoder), head, num_classes=10, normalize=not learned).double()
    assembly = in_double(assemble(experiment()))
    assembly = Assembly(assembly.experiment, assembly.dataset, assembly.partition, LocalModel(model))
    request = Train(0, assembly.initial(), 0.1)
    alone = [*InProcess(assembly.clients).ask(range(12), request)]
    by_chain = [*InProcess(with_stack(assembly, 12).clients).ask(range(12), request)]
    for one, other in zip(alone, by_chain, strict=True):
        assert isinstance(one, TrainReply)
        for name, delta in one.delta.items():
            assert torch.allclose(other.delta[name], delta, rtol=1e-9, atol=1e-12), name


@pytest.mark.parametrize(
    ("layers", "refused"),
    [
        ((nn.Linear(8, 4), nn.Tanh(), nn.Flatten(), nn.Linear(32, 6)), "Linear layer on inputs of 4"),
        ((nn.Flatten(1, 2), nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(16, 6)), "MaxPool2d layer on inputs of 3"),
    ],
)
def test_layers_for_which_clients_do_not_lie_along_the_channels_are_trained_one_by_one(
    layers: tuple[nn.Module, ...], refused: str
) -> None:
    encoder = nn.Sequential(*layers)
    model = Classifier(encoder, Learned().build(10, 6, 0), num_classes=10, normalize=False).double()
    whole = in_double(assemble(experiment()))
    assembly = Assembly(whole.experiment, whole.dataset, whole.partition, LocalModel(model))
    request = Train(0, assembly.initial(), 0.1)
    alone = [*InProcess(assembly.clients).ask(range(12), request)]
    with pytest.warns(UserWarning, match=f"were not stacked, but trained one by one: a {refused}"):
        together = [*InProcess(with_stack(assembly, 12).clients).ask(range(12), request)]
    for one, other in zip(alone, together, strict=True):
        assert isinstance(one, TrainReply)
        assert isinstance(other, TrainReply)
        assert digest(one.delta) == digest(other.delta)


def test_clients_apart_train_one_by_one_unless_told_otherwise() -> None:
    assert (experiment().unstacked().stack, experiment(stack=4).unstacked().stack) == (0, 4)
