"""What every combination of algorithm, head, normalisation, loss and calibration promises.

It learns, resumes to the bit and does not depend on workers. The axes are read from the registries, so a new member is
held to the contract without a change here; every pair of values is met in the default suite, the full product in the
long one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

from spherefed.assembly import Assembly, assemble
from spherefed.calibration import Calibration, Ccvr, Oracle
from spherefed.calibration.refit import Refit
from spherefed.client.evaluation import GLOBAL_TEST
from spherefed.client.training import LocalTraining
from spherefed.data.partition import Dirichlet
from spherefed.engines.local import InProcess
from spherefed.errors import SpherefedError
from spherefed.experiment import Data, Experiment, Model
from spherefed.files import read_tensors
from spherefed.losses import CrossEntropy, Loss, MeanSquaredError
from spherefed.messages import ModelState, Train, TrainReply
from spherefed.nn.encoders import Mlp
from spherefed.nn.heads import Head, Learned, RidgeStart, Tammes
from spherefed.recipes.methods import BASES, OVERLAYS
from spherefed.runs.directory import RunDirectory
from spherefed.runs.round_log import RoundLog
from spherefed.runs.runner import Engine, run, run_to_end
from spherefed.schema import built_in_kinds
from spherefed.server.algorithms import Algorithm, moon
from spherefed.server.federation import MEDIAN_NORM, federate
from spherefed.tensors import digest

ROUNDS = 5
CHANCE = 0.1

# The axes


@dataclass(frozen=True)
class Setting:
    """What is chosen once per loss and normalisation, for all algorithms, heads and calibrations alike."""

    loss: Loss
    lr: float
    falls_to: float
    """The loss over all training examples after five rounds, as a fraction of the untrained model's."""


# Falling is not enough on unit features: one feature for all inputs has a lower loss than the untrained model, too.
# Hence the accuracy is looked at as well.
SETTINGS = {
    ("ce", False): Setting(CrossEntropy(), lr=0.3, falls_to=0.7),
    ("ce", True): Setting(CrossEntropy(scale=10.0), lr=0.01, falls_to=0.7),
    ("mse", False): Setting(MeanSquaredError(), lr=1.0, falls_to=0.8),
    ("mse", True): Setting(MeanSquaredError(), lr=1.0, falls_to=0.75),
}

SMALLER: dict[type, Any] = {
    Tammes: Tammes(steps=200),
    Ccvr: Ccvr(num_virtual=20, refit=Refit(lr=1e-5, epochs=2)),
    Oracle: Oracle(refit=Refit(lr=0.01, epochs=5)),
}
"""Members whose defaults take long; the others are tested with theirs."""

# A ridge start is no untrained head, which this contract compares with; tests/runs/test_head_start.py has its own.
HEADS = tuple(head for head in built_in_kinds(Head).values() if head is not RidgeStart)

AXES: tuple[tuple[Any, ...], ...] = (
    tuple(BASES),
    HEADS,
    (False, True),
    built_in_kinds(Loss).values(),
    (None, *built_in_kinds(Calibration).values()),
)

Point = tuple[Any, ...]


def covering(axes: Sequence[Sequence[Any]]) -> list[Point]:
    """Points that meet every pair of values of two axes, chosen greedily: the one that meets most new pairs is next."""
    everything = {point: frozenset(combinations(enumerate(point), 2)) for point in product(*axes)}
    missing, chosen = frozenset[Any]().union(*everything.values()), []
    while missing:
        best = max(everything, key=lambda point: len(everything[point] & missing))
        chosen.append(best)
        missing -= everything[best]
    return chosen


def name_of(point: Point) -> str:
    base, head, normalize, loss, calibration = point
    features = "unit" if normalize else "plain"
    return f"{base}-{head.kind}-{features}-{loss.kind}-{'none' if calibration is None else calibration.kind}"


def experiment(point: Point) -> Experiment:
    base, head, normalize, loss, calibration = point
    setting = SETTINGS[loss.kind, normalize]  # a new loss needs a setting of its own
    return Experiment(
        name="contract",
        rounds=ROUNDS,
        data=Data(examples=300),
        partition=Dirichlet(alpha=1.0, clients=5),
        cohort=4,
        model=Model(encoder=Mlp(widths=(32, 32)), head=SMALLER.get(head) or head(), normalize=normalize),
        loss=setting.loss,
        algorithm=algorithm(base),
        local=LocalTraining(lr=setting.lr, epochs=2, batch_size=16),
        calibration=None if calibration is None else SMALLER.get(calibration) or calibration(),
        evaluate_every=ROUNDS,
    )


def algorithm(base: str) -> Algorithm:
    # MOON's own μ of 1 is meant for a cross-entropy of about 1; the MSE of ten classes starts at 0.1.
    return moon(mu=0.02) if base == "moon" else BASES[base]()


PAIRWISE = covering(AXES)
RARE = [p for p in product(*AXES) if p not in PAIRWISE]
ALL = [
    *(pytest.param(p, id=name_of(p)) for p in PAIRWISE),
    *(pytest.param(p, id=name_of(p), marks=pytest.mark.soak) for p in RARE),
]
ON_WORKERS = [next(p for p in PAIRWISE if p[0] == base and p[4] is not None) for base in ("scaffold", "fedadam")]


def test_the_pairwise_set_meets_every_pair_and_is_much_smaller_than_the_product() -> None:
    for (i, first), (j, second) in combinations(enumerate(AXES), 2):
        met = {(point[i], point[j]) for point in PAIRWISE}
        assert met == set(product(first, second))
    assert 10 * len(PAIRWISE) < prod(map(len, AXES))


# The contract


@pytest.mark.slow
@pytest.mark.parametrize("point", ALL)
def test_a_point_learns_and_resumes_to_the_bit(point: Point, tmp_path: Path) -> None:
    e = experiment(point)
    if may_diverge(point):
        ends_in_a_result_or_a_typed_error(e, tmp_path)
        return
    run_to_end(e, tmp_path / "whole", engine=Engine(checkpoint_every=ROUNDS))
    learns(point, tmp_path / "whole")
    for progress in run(e, tmp_path / "cut", engine=Engine(checkpoint_every=3)):
        if progress.index == 1:
            break
    run_to_end(e, tmp_path / "cut", resume=True)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        *(pytest.param(p, id=name_of(p)) for p in ON_WORKERS),
        *(pytest.param(p, id=name_of(p), marks=pytest.mark.soak) for p in PAIRWISE if p not in ON_WORKERS),
    ],
)
def test_a_point_does_not_depend_on_workers(point: Point, tmp_path: Path) -> None:
    e = replace(experiment(point), rounds=2)
    outcomes = []
    for workers in (0, 2):
        path, allowed = tmp_path / str(workers), SpherefedError if may_diverge(point) else ()
        try:
            run_to_end(e, path, engine=Engine(workers=workers))
        except allowed as error:
            outcomes.append(str(error))
        else:
            outcomes.append(str(outcome(path)))
    assert outcomes[0] == outcomes[1]


def may_diverge(point: Point) -> bool:
    """MSE on unit features with a learned head: the paper's Table 3 has no number for it."""
    _, head, normalize, loss, _ = point
    return head is Learned and normalize and loss is MeanSquaredError


def ends_in_a_result_or_a_typed_error(e: Experiment, path: Path) -> None:
    try:
        result = run_to_end(e, path / "run")
    except SpherefedError:
        assert not RunDirectory(path / "run").finished
    else:
        assert set(result["accuracy"]) == {"trained", *(["calibrated"] if e.calibration else [])}


def learns(point: Point, path: Path) -> None:
    e, setting = experiment(point), SETTINGS[point[3].kind, point[2]]
    checkpoint = RoundLog(path).newest_checkpoint()
    assert checkpoint is not None
    assembly = assemble(e)
    before, after = (training_loss(assembly, model) for model in (assembly.initial(), checkpoint.model))
    assert after < setting.falls_to * before, f"from {before:.4f} to {after:.4f}"
    accuracy = RunDirectory(path).result()["accuracy"]
    assert set(accuracy) == {"trained", *(["calibrated"] if e.calibration else [])}
    for stage, found in accuracy.items():
        assert found[GLOBAL_TEST] > 2 * CHANCE, stage


def training_loss(assembly: Assembly, model: ModelState) -> float:
    """What the federation minimises: the loss of the global model over everybody's training examples."""
    assembly.local_model.load_state(model)
    ((inputs, labels),) = assembly.dataset.train.in_order(1000, device=torch.device("cpu"))
    with torch.no_grad():
        return float(assembly.experiment.loss(assembly.local_model.classifier.eval()(inputs), labels))


def outcome(path: Path) -> tuple[Any, ...]:
    """Everything a run leaves behind that must be equal: weights, accuracies, the states of server and clients."""
    directory = RunDirectory(path)
    result, checkpoint = directory.result(), RoundLog(path).newest_checkpoint()
    assert checkpoint is not None
    memory = sorted((path / "client_states").iterdir()) if (path / "client_states").exists() else []
    remembered = {file.name: digest(read_tensors(file)[0]) for file in memory}
    return (
        result["weights_sha256"],
        result["accuracy"],
        result["calibration"],
        checkpoint.model.digest(),
        digest(checkpoint.server_state),
        remembered,
    )


def test_what_is_compared_after_a_resume_holds_both_memories(tmp_path: Path) -> None:
    """Else two empty memories would be equal."""
    for base, server, clients in (("scaffold", True, True), ("fedadam", True, False), ("moon", False, True)):
        e = replace(experiment((base, Learned, False, CrossEntropy, None)), rounds=1)
        run_to_end(e, tmp_path / base)
        checkpoint = RoundLog(tmp_path / base).newest_checkpoint()
        assert checkpoint is not None
        assert bool(checkpoint.server_state.keys() - {MEDIAN_NORM}) == server
        assert bool(outcome(tmp_path / base)[-1]) == clients


# Fixed heads


class Watched:
    """A fleet that shows every message of a round, and the head it was answered with."""

    def __init__(self, fleet: InProcess, head: torch.Tensor) -> None:
        self.fleet, self.head = fleet, head
        self.messages: list[Train | TrainReply] = []
        self.heads: list[torch.Tensor] = []

    @property
    def clients(self) -> Sequence[int]:
        return self.fleet.clients

    def ask(self, clients: Sequence[int], request: Any) -> Iterator[Any]:
        self.messages.append(request)
        for answer in self.fleet.ask(clients, request):
            self.messages.append(answer)
            self.heads.append(self.head.detach().clone())
            yield answer


@pytest.mark.parametrize("overlay", ["babu", "spherefed"])
@pytest.mark.parametrize("head", [head for head in HEADS if head is not Learned], ids=lambda head: head.kind)
def test_a_fixed_head_is_the_same_on_all_clients_and_not_transmitted_in_any_round(head: type, overlay: str) -> None:
    # SCAFFOLD, because it sends more than a model.
    laid = OVERLAYS[overlay](experiment(("scaffold", Learned, False, CrossEntropy, None)))
    e = replace(laid, model=replace(laid.model, head=SMALLER.get(head) or head()))
    assembly, elsewhere = assemble(e), assemble(e)
    weight = assembly.local_model.classifier.head.weight.detach().clone()
    assert torch.equal(elsewhere.local_model.classifier.head.weight, weight)  # another process derives the same one
    fleet = Watched(InProcess(assembly.clients), assembly.local_model.classifier.head.weight)
    assert len(list(federate(fleet, assembly.initial(), assembly.plan()))) == ROUNDS
    assert len(fleet.heads) == 4 * ROUNDS
    assert all(torch.equal(used, weight) for used in fleet.heads)
    for message in fleet.messages:
        model = message.model.tensors() if isinstance(message, Train) else {**message.delta, **message.buffers}
        for name, tensor in {**model, **message.extra}.items():
            assert "head" not in name
            assert tensor.shape != weight.shape


# What a round says


def test_the_training_loss_of_moon_is_that_of_fedavg_where_its_models_agree() -> None:
    """The contrastive term is descended on and not reported: curves of different methods compare."""
    lines = {}
    for base in ("fedavg", "moon"):
        e = replace(experiment((base, Learned, False, CrossEntropy, None)), cohort=None, algorithm=BASES[base]())
        e = replace(e, local=replace(e.local, lr=1e-6, momentum=0.0))
        assembly = assemble(e)
        lines[base] = [r.loss for r in federate(InProcess(assembly.clients), assembly.initial(), assembly.plan())]
    assert lines["moon"] == pytest.approx(lines["fedavg"], abs=1e-4)
