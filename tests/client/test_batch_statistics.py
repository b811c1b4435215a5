"""BatchNorm in a federation: batches of one, and the three policies for running statistics."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from spherefed.assembly import assemble
from spherefed.calibration import Ffc
from spherefed.client.batch_statistics import BatchStatistics, measure_moments, no_moments, pooled_statistics
from spherefed.client.evaluation import GLOBAL_TEST, PERSONAL_TEST_BY_CLIENTS, PERSONAL_TEST_BY_SAMPLES
from spherefed.client.local_model import LocalModel
from spherefed.client.training import LocalTraining
from spherefed.data.examples import Examples
from spherefed.data.partition import Dirichlet, Stored
from spherefed.data.partition_file import write_parts
from spherefed.engines.local import InProcess
from spherefed.errors import ConfigError, RunError
from spherefed.experiment import Data, Experiment, Model
from spherefed.files import read_tensors
from spherefed.losses import CrossEntropy
from spherefed.messages import Failure, Reestimate, ReestimateReply, Reply, Request, TrainReply
from spherefed.nn.classifier import Classifier
from spherefed.nn.encoders import SmallNet
from spherefed.nn.heads import Learned
from spherefed.recipes.methods import OVERLAYS, methods
from spherefed.report.run_files import read_runs
from spherefed.report.summary import summarize
from spherefed.rng import Purpose, stream
from spherefed.runs.directory import RunDirectory
from spherefed.runs.loading import load
from spherefed.runs.round_log import read_lines
from spherefed.runs.runner import Engine, run, run_to_end
from spherefed.server.algorithms import lg_fedavg, moon
from spherefed.server.collection import reestimate
from spherefed.server.federation import federate, train_request
from spherefed.tensors import Tensors
from support.small import handle_one, train_one

CPU = torch.device("cpu")


def experiment(**changes: Any) -> Experiment:
    values: dict[str, Any] = {
        "name": "batchnorm",
        "rounds": 2,
        "data": Data(examples=200),
        "partition": Dirichlet(alpha=0.5, clients=4),
        "model": Model(encoder=SmallNet(norm="batch")),
        "local": LocalTraining(lr=0.05, epochs=1, batch_size=16),
    }
    return Experiment(**(values | changes))


def numbered(num: int) -> Examples:
    """Examples whose only input is their own number."""
    return Examples(torch.arange(num, dtype=torch.float32)[:, None], torch.zeros(num, dtype=torch.int64))


def dense_bench() -> LocalModel:
    """BatchNorm on flat features: the layer that torch refuses to train on one example."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(1, 8), nn.BatchNorm1d(8), nn.ReLU())
    return LocalModel(Classifier(encoder, Learned().build(3, 8, 0), num_classes=3, normalize=False))


# Batches of one


@pytest.mark.parametrize("num", range(12))
@pytest.mark.parametrize("smallest", [1, 2, 3])
def test_a_last_batch_that_is_too_small_joins_the_one_before(num: int, smallest: int) -> None:
    order = np.random.default_rng(0)
    batches = [x[:, 0].tolist() for x, _ in numbered(num).epoch(4, order, device=CPU, min_batch_size=smallest)]
    assert sorted(chain(*batches)) == (list(range(num)) if num >= smallest else [])
    assert all(len(batch) == 4 for batch in batches[:-1])
    assert all(smallest <= len(batch) < 4 + smallest for batch in batches)
    plain = [x[:, 0].tolist() for x, _ in numbered(num).epoch(4, np.random.default_rng(0), device=CPU)]
    if num % 4 == 0 or num % 4 >= smallest:
        assert batches == plain
    assert list(chain(*batches)) == (list(chain(*plain)) if num >= smallest else [])


@pytest.mark.parametrize(("num", "steps"), [(0, 0), (1, 0), (2, 2), (4, 2), (5, 2), (6, 4)])
def test_batch_norm_trains_whatever_the_number_of_examples(num: int, steps: int) -> None:
    local = LocalTraining(lr=0.1, epochs=2, batch_size=4)
    local_model = dense_bench()
    before = local_model.state()
    trained = train_one(
        local_model, numbered(num), local=local, loss=CrossEntropy(), lr=0.1, order=np.random.default_rng(0)
    )
    assert trained.num_steps == steps
    assert (local_model.state().digest() == before.digest()) is (steps == 0)


def test_a_client_with_one_example_counts_as_one_without_under_batch_norm(tmp_path: Path) -> None:
    sizes = [1, 17, 0, 42]  # 17 and 42 = 2·16 + 10: one last batch of one, one of ten
    write_parts(np.split(np.arange(60), np.cumsum(sizes)[:-1]), tmp_path / "parts.json")
    e = experiment(
        data=Data(examples=60), partition=Stored(path=str(tmp_path / "parts.json"), clients=4), calibration=Ffc()
    )
    result = run_to_end(e, tmp_path / "run")
    assert np.isfinite(list(result["accuracy"]["calibrated"].values())).all()
    assert [line["num_examples"] for line in read_lines(tmp_path / "run" / "rounds.jsonl")] == [59, 59]
    rejected = read_lines(tmp_path / "run" / "rejections.jsonl")
    assert [(line["client"], line["round"]) for line in rejected] == [(0, 2)]  # its statistics would reveal it
    group = replace(e, model=Model(encoder=SmallNet(norm="group")))
    run_to_end(group, tmp_path / "group")
    assert [line["num_examples"] for line in read_lines(tmp_path / "group" / "rounds.jsonl")] == [60, 60]


def test_a_federation_of_single_examples_moves_nothing_under_batch_norm(tmp_path: Path) -> None:
    write_parts([np.array([i]) for i in range(3)], tmp_path / "parts.json")
    e = experiment(data=Data(examples=3), partition=Stored(path=str(tmp_path / "parts.json"), clients=3))
    assembly = assemble(e)
    initial = assembly.initial()
    for done in federate(InProcess(assembly.clients), initial, assembly.plan()):
        assert done.num_examples == 0
        assert not done.rejected
        assert done.model.digest() == initial.digest()


def test_batches_of_one_are_refused_under_batch_norm() -> None:
    local = LocalTraining(lr=0.1, batch_size=1)
    with pytest.raises(ConfigError, match=r"'smallnet' has BatchNorm.*at least 2, got 1.*norm = 'group'"):
        assemble(experiment(local=local))
    assemble(experiment(local=local, model=Model(encoder=SmallNet())))


# Policies


def local_statistics(**changes: Any) -> Experiment:
    model = Model(encoder=SmallNet(norm="batch"), batch_statistics="local")
    return experiment(**({"model": model, "data": Data(examples=200, held_out=0.2)} | changes))


def reestimated_statistics(**changes: Any) -> Experiment:
    model = Model(encoder=SmallNet(norm="batch"), batch_statistics="reestimate")
    return experiment(**({"model": model} | changes))


def statistics_in(tensors: Tensors) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors.items() if "running_" in name}


def test_averaged_statistics_are_the_weighted_mean_of_the_clients() -> None:
    assembly = assemble(experiment(rounds=1))
    initial, plan = assembly.initial(), assembly.plan()
    (done,) = federate(InProcess(assembly.clients), initial, plan)
    sizes, theirs = [], []
    for number in range(4):
        reply, _ = handle_one(assembly.clients[number], train_request(plan, 0, initial, {}), None)
        assert isinstance(reply, TrainReply)
        sizes.append(reply.num_examples)
        theirs.append(reply.buffers)
    assert len(statistics_in(done.model.buffers)) == len(done.model.buffers) == 6
    for name, averaged in done.model.buffers.items():
        expected = np.average([buffers[name].numpy() for buffers in theirs], axis=0, weights=sizes)
        np.testing.assert_allclose(averaged.numpy(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("policy", ["average", "local", "reestimate"])
def test_integer_buffers_never_travel(policy: BatchStatistics, tmp_path: Path) -> None:
    model = Model(encoder=SmallNet(norm="batch"), batch_statistics=policy)
    run_to_end(experiment(model=model, data=Data(examples=200, held_out=0.2)), tmp_path / "run")
    for file in (tmp_path / "run").glob("**/*.safetensors"):
        if not file.name.startswith(("partition", "diagnostics")):  # indices and counts, which are never sent
            assert all(t.is_floating_point() for t in read_tensors(file)[0].values()), file


def test_step_counters_do_not_outlive_a_client() -> None:
    """Without momentum torch divides by the counter, so a client would depend on who used the bench before it."""
    local_model = dense_bench()
    layer = local_model.classifier.encoder[1]
    assert isinstance(layer, nn.BatchNorm1d)
    layer.momentum = None
    initial, local, states = local_model.state(), LocalTraining(lr=0.1, epochs=1, batch_size=4), []
    for _ in range(2):
        local_model.load_state(initial)
        train_one(local_model, numbered(9), local=local, loss=CrossEntropy(), lr=0.1, order=np.random.default_rng(0))
        states.append(local_model.state().digest())
    assert states[0] == states[1]


def test_local_statistics_stay_with_the_client_and_are_used_there(tmp_path: Path) -> None:
    e = local_statistics()
    result = run_to_end(e, tmp_path / "run")
    model = RunDirectory(tmp_path / "run").model()
    assert not model.buffers
    assert set(result["accuracy"]["trained"]) == {PERSONAL_TEST_BY_SAMPLES, PERSONAL_TEST_BY_CLIENTS}
    assert all(line["accuracy"] == {} for line in read_lines(tmp_path / "run" / "rounds.jsonl"))
    with pytest.raises(RunError, match="name the one whose model to load"):
        load(tmp_path / "run")
    first, second = (load(tmp_path / "run", client=k).state_dict() for k in (0, 1))
    for name, tensor in first.items():
        if tensor.is_floating_point():
            assert torch.equal(tensor, second[name]) is (name not in statistics_in(first)), name
    memory = RunDirectory(tmp_path / "run").client_states().load(0, before=2)
    assert memory is not None
    assert set(memory) == {f"private.{name}" for name in statistics_in(first)}


@pytest.mark.slow
@pytest.mark.parametrize("make", [local_statistics, reestimated_statistics], ids=["local", "reestimate"])
def test_workers_and_a_resumed_run_give_the_same_bits(make: Callable[..., Experiment], tmp_path: Path) -> None:
    e = make(rounds=3, cohort=3, algorithm=moon())
    whole = run_to_end(e, tmp_path / "whole")
    parallel = run_to_end(e, tmp_path / "parallel", engine=Engine(workers=2))
    for _ in run(e, tmp_path / "stopped"):
        break
    stopped = run_to_end(e, tmp_path / "stopped", resume=True)
    for other in (parallel, stopped):
        assert other["weights_sha256"] == whole["weights_sha256"]
        assert other["accuracy"] == whole["accuracy"]
        assert other["traffic"] == whole["traffic"]


def test_reestimation_pools_the_first_layer_exactly_and_deeper_ones_as_they_were_fed() -> None:
    assembly = assemble(reestimated_statistics(rounds=1))
    fleet, initial = InProcess(assembly.clients), assembly.initial()
    (done,) = federate(fleet, initial, assembly.plan())
    found = reestimate(fleet, done.model, 1)
    assert not found.rejected
    assert found.model.params is done.model.params
    # By hand, with torch's own layers: what each BatchNorm is given, all clients' batches one after the other.
    assembly.local_model.load_state(done.model)
    encoder = assembly.local_model.classifier.encoder.train()
    assert isinstance(encoder, nn.Sequential)
    fed: dict[int, list[torch.Tensor]] = {i: [] for i, layer in enumerate(encoder) if isinstance(layer, nn.BatchNorm2d)}
    with torch.no_grad():
        for number in range(4):
            order = stream(0, Purpose.REESTIMATE, 1, number)
            for x, _ in assembly.clients[number].examples.epoch(16, order, device=CPU, min_batch_size=2):
                maps = x
                for i, layer in enumerate(encoder):
                    if i in fed:
                        fed[i].append(maps.double())
                    maps = layer(maps)
        everything = encoder[0](next(assembly.dataset.train.in_order(200, device=CPU))[0]).double()
    for i, batches in fed.items():
        pooled = torch.cat(batches)
        mean, variance = pooled.mean(dim=(0, 2, 3)), pooled.var(dim=(0, 2, 3))
        torch.testing.assert_close(found.model.buffers[f"encoder.{i}.running_mean"], mean.float(), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(found.model.buffers[f"encoder.{i}.running_var"], variance.float(), rtol=1e-6, atol=0)
    for name, expected in (("mean", everything.mean(dim=(0, 2, 3))), ("var", everything.var(dim=(0, 2, 3)))):
        first = found.model.buffers[f"encoder.1.running_{name}"]
        torch.testing.assert_close(first, expected.float(), rtol=1e-5, atol=1e-6)


def test_reestimation_does_not_depend_on_how_examples_are_divided_in_the_first_layer() -> None:
    found = []
    for clients in (1, 7):
        assembly = assemble(reestimated_statistics(partition=Dirichlet(alpha=0.5, clients=clients, min_size=2)))
        found.append(reestimate(InProcess(assembly.clients), assembly.initial(), 0).model.buffers)
    for name in ("encoder.1.running_mean", "encoder.1.running_var"):
        torch.testing.assert_close(found[0][name], found[1][name], rtol=1e-6, atol=1e-7)


def test_random_layers_rest_while_moments_are_measured() -> None:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 8), nn.BatchNorm1d(8))
    local_model = LocalModel(Classifier(encoder, Learned().build(3, 8, 0), num_classes=3, normalize=False))
    batches = list(numbered(9).in_order(9, device=CPU))
    moments = [measure_moments(local_model.classifier, batches, local_model.shared_buffers) for _ in range(2)]
    assert all(torch.equal(moments[0][name], tensor) for name, tensor in moments[1].items())
    expected = encoder[1](batches[0][0]).detach().double()
    torch.testing.assert_close(moments[0]["encoder.2.sum"], expected.sum(dim=0))
    assert not any(layer._forward_pre_hooks for layer in local_model.classifier.modules())


def test_statistics_of_nobody_stay_as_they_are() -> None:
    buffers = {"a.running_mean": torch.ones(2), "a.running_var": torch.full((2,), 3.0), "b": torch.zeros(1)}
    pooled = pooled_statistics(no_moments(buffers), buffers)
    assert all(pooled[name] is tensor for name, tensor in buffers.items())


def test_the_run_reports_what_reestimation_costs_and_evaluates_after_it(tmp_path: Path) -> None:
    e = reestimated_statistics(calibration=Ffc())
    result = run_to_end(e, tmp_path / "run")
    channels = 16 + 32 + 64
    assert result["traffic"]["reestimate"]["up"] == 8 * (3 + 3 + 2 * channels)  # three scalars, three counts, two sums
    assert result["seconds"]["reestimate"] > 0
    averaged = replace(e, model=Model(encoder=SmallNet(norm="batch")))
    before = run_to_end(averaged, tmp_path / "average")
    assert before["traffic"]["train"] == result["traffic"]["train"]
    assert before["weights_sha256"] != result["weights_sha256"]
    trained = load(tmp_path / "run").state_dict()
    plain = load(tmp_path / "average").state_dict()
    encoder = [n for n in plain if n.startswith("encoder.") and n not in statistics_in(plain)]
    assert all(torch.equal(trained[n], plain[n]) for n in encoder)
    ((found,), _) = read_runs([tmp_path / "run"])
    stages = found.stages
    assert stages["trained"].bytes_up == result["traffic"]["train"]["up"] + result["traffic"]["reestimate"]["up"]


def test_moments_that_cannot_be_are_refused() -> None:
    assembly = assemble(reestimated_statistics())
    initial, num = assembly.initial(), 4
    honest = InProcess(assembly.clients)

    class Liars:
        clients = range(num)

        def ask(self, clients: Sequence[int], request: Request) -> Iterator[Reply | Failure]:
            for reply in honest.ask(clients, request):
                assert isinstance(reply, ReestimateReply)
                changes: dict[int, Any] = {
                    0: {"encoder.1.square_sum": torch.full((16,), -1.0, dtype=torch.float64)},
                    1: {"encoder.1.sum": torch.full((16,), torch.nan, dtype=torch.float64)},
                    2: {"encoder.1.sum": torch.zeros(16)},
                }
                yield replace(reply, moments=dict(reply.moments) | changes.get(reply.client, {}))

    found = reestimate(Liars(), initial, 0)
    assert [(r.client, r.cause) for r in found.rejected] == [
        (0, "'encoder.1.square_sum' is negative"),
        (1, "'encoder.1.sum' is not finite"),
        (2, "'encoder.1.sum' has dtype torch.float32, expected torch.float64"),
    ]
    alone, _ = handle_one(assembly.clients[3], Reestimate(0, initial), None)
    assert isinstance(alone, ReestimateReply)
    expected = pooled_statistics(alone.moments, initial.buffers)
    assert all(torch.equal(found.model.buffers[n], t) for n, t in expected.items())


@pytest.mark.parametrize(
    ("claimed", "weight", "size", "cause"),
    [
        (0, 1.0, 1.0, "inputs of no example"),
        (None, 1e9, 1.0, "inputs per example"),  # more weight than the examples have
        (None, 1.0, 1e4, "size of inputs"),  # values that are far beyond those of other clients
    ],
)
def test_moments_far_beyond_those_of_other_clients_are_refused(
    claimed: int | None, weight: float, size: float, cause: str
) -> None:
    assembly = assemble(reestimated_statistics())
    initial, honest = assembly.initial(), InProcess(assembly.clients)

    class Liar:
        clients = range(4)

        def ask(self, clients: Sequence[int], request: Request) -> Iterator[Reply | Failure]:
            for reply in honest.ask(clients, request):
                assert isinstance(reply, ReestimateReply)
                if reply.client != 1:
                    yield reply
                    continue
                factors = {"count": weight, "sum": weight * size, "square_sum": weight * size**2}
                moments = {name: t * factors[name.rpartition(".")[2]] for name, t in reply.moments.items()}
                yield replace(reply, moments=moments, num_examples=reply.num_examples if claimed is None else claimed)

    found = reestimate(Liar(), initial, 0)
    assert [line.client for line in found.rejected] == [1]
    assert cause in found.rejected[0].cause
    total = no_moments(initial.buffers)
    for reply in honest.ask([0, 2, 3], Reestimate(0, initial)):
        assert isinstance(reply, ReestimateReply)
        total = {name: moment + reply.moments[name] for name, moment in total.items()}
    expected = pooled_statistics(total, initial.buffers)
    assert all(torch.equal(found.model.buffers[n], t) for n, t in expected.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": Model(batch_statistics="local")}, r"data\.held_out must be above 0"),
        (
            {"model": Model(batch_statistics="local"), "calibration": Ffc(), "data": Data(held_out=0.2)},
            r"calibration needs a model that all clients share.*batch_statistics = 'local'",
        ),
        ({"model": Model(batch_statistics="reestimate"), "algorithm": lg_fedavg()}, r"'reestimate'.*share = 'head'"),
    ],
)
def test_policies_that_nobody_could_follow_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        experiment(**changes)


@pytest.mark.parametrize("policy", ["local", "reestimate"])
def test_a_policy_without_batch_norm_is_refused_before_round_one(policy: BatchStatistics) -> None:
    model = Model(encoder=SmallNet(norm="group"), batch_statistics=policy)
    with pytest.raises(ConfigError, match=rf"'{policy}' needs an encoder with BatchNorm, got 'smallnet'"):
        assemble(experiment(model=model, data=Data(held_out=0.2)))


def test_a_comparison_keeps_the_policy_for_every_method() -> None:
    trained = [overlay for overlay in OVERLAYS if overlay != "one-shot"]
    built = methods(reestimated_statistics(), "fedavg", trained, {})
    assert {e.model.batch_statistics for e in built.values()} == {"reestimate"}


def test_runs_without_a_global_model_are_summarised_by_what_they_have(tmp_path: Path) -> None:
    run_to_end(local_statistics(), tmp_path / "local")
    summary = summarize([tmp_path / "local"])
    assert summary.notes[0] == f"Accuracy is {PERSONAL_TEST_BY_SAMPLES}: not every run has {GLOBAL_TEST}."
    assert len(summary.rows) == 1
    run_to_end(experiment(), tmp_path / "average")
    with pytest.raises(RunError, match="local has no accuracy"):  # nothing in common
        summarize([tmp_path])
