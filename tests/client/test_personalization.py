"""The personalised protocol (App. B): who holds what, and every personal model against one made by hand."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from spherefed.assembly import Assembly, assemble
from spherefed.calibration import Ffc
from spherefed.client.evaluation import PERSONAL_TEST_BY_CLIENTS, PERSONAL_TEST_BY_SAMPLES, global_accuracy
from spherefed.client.personalization import BlendedFfc, FineTune, LocalFfc
from spherefed.client.training import LocalTraining
from spherefed.data.partition import Dirichlet
from spherefed.engines.local import InProcess
from spherefed.errors import ConfigError
from spherefed.experiment import Data, Experiment, Model, experiment_from_mapping
from spherefed.messages import Evaluate, EvaluateReply, ModelState, message_bytes
from spherefed.nn.encoders import Mlp
from spherefed.nn.heads import FixedRandom, Orthonormal
from spherefed.rng import Purpose, stream
from spherefed.runs.round_log import read_lines
from spherefed.runs.runner import run_to_end
from spherefed.schema import to_plain
from spherefed.server.algorithms import Algorithm, fedavg, fedrep, lg_fedavg
from spherefed.server.collection import evaluate_on_clients
from support.small import handle_one

POOLED = Data(pooled=True, held_out=0.15)


def experiment(**changes: Any) -> Experiment:
    values: dict[str, Any] = {
        "name": "x",
        "rounds": 2,
        "data": POOLED,
        "partition": Dirichlet(alpha=0.5, clients=5),
        "model": Model(encoder=Mlp(widths=(16,))),
        "local": LocalTraining(lr=0.1, epochs=2),
    }
    return Experiment(**(values | changes))


def rows(assembly: Assembly, examples: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return examples.inputs[examples.indices], examples.labels[examples.indices]


# Who holds what


def test_pooled_clients_share_all_examples_and_hold_out_their_own() -> None:
    assembly = assemble(experiment())
    seen, held_out = [], []
    for k in range(5):
        client = assembly.clients[k]
        size = len(assembly.partition.parts[k])
        assert len(client.held_out) == int(0.15 * size)
        assert len(client.examples) == size - len(client.held_out)
        seen += client.examples.indices.tolist()
        held_out += client.held_out.indices.tolist()
    assert sorted(seen + held_out) == list(range(1797))  # digits: training and test part together
    assert len(assembly.dataset.test) == 0
    assert global_accuracy(assembly.local_model, assembly.initial(), assembly.dataset.test) is None


def test_pooling_keeps_every_example_once() -> None:
    pooled, unstacked = assemble(experiment()).dataset, assemble(experiment(data=Data())).dataset
    everything = torch.cat([unstacked.train.inputs, unstacked.test.inputs])
    assert torch.equal(pooled.train.inputs, everything)
    assert torch.equal(pooled.train.labels, torch.cat([unstacked.train.labels, unstacked.test.labels]))


def test_tuning_never_looks_at_what_is_held_out() -> None:
    plain = assemble(experiment())
    tuning = assemble(experiment(data=replace(POOLED, validation=0.2)))
    for k in range(5):
        test = set(plain.clients[k].held_out.indices.tolist())
        client = tuning.clients[k]
        used = client.examples.indices.tolist() + client.held_out.indices.tolist()
        assert not test & set(used)
        assert sorted([*used, *test]) == sorted(tuning.partition.parts[k].tolist())


# Personal models, by hand


def personal_counts(e: Experiment, model: ModelState, extra: Any = None) -> dict[int, int]:
    assembly = assemble(e)
    fleet = InProcess(assembly.clients)
    found = evaluate_on_clients(
        fleet, model, e.rounds, personalize=True, extra=extra, num_classes=assembly.dataset.num_classes
    )
    assert not found.rejected
    return {k: c.correct for k, c in zip(found.clients, found.counts, strict=True)}


def unit_features(assembly: Assembly, model: ModelState, x: torch.Tensor) -> np.ndarray:
    assembly.local_model.load_state(model)
    with torch.no_grad():
        z = assembly.local_model.classifier.encoder(x).double().numpy()
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def by_hand(e: Experiment, model: ModelState, gamma: float, ridge: float) -> dict[int, int]:
    """W_k = (V_k + γV + λI)⁻¹(U_k + γU) with numpy on features in float64."""
    assembly = assemble(e)
    z, y = {}, {}
    for k in range(5):
        x, labels = rows(assembly, assembly.clients[k].examples)
        z[k], y[k] = unit_features(assembly, model, x), np.eye(10)[labels.numpy()]
    v, u = sum(a.T @ a for a in z.values()), sum(z[k].T @ y[k] for k in z)
    right = {}
    for k in range(5):
        w = np.linalg.solve(z[k].T @ z[k] + gamma * v + ridge * np.eye(16), z[k].T @ y[k] + gamma * u)
        x, labels = rows(assembly, assembly.clients[k].held_out)
        right[k] = int(((unit_features(assembly, model, x) @ w).argmax(axis=1) == labels.numpy()).sum())
    return right


def test_local_ffc_is_ridge_regression_on_own_data() -> None:
    e = experiment(personalization=LocalFfc(ridge=0.5))
    model = assemble(e).initial()
    assert personal_counts(e, model) == by_hand(e, model, gamma=0.0, ridge=0.5)


def test_blended_ffc_adds_a_share_of_everybodys_statistics() -> None:
    e = experiment(calibration=Ffc(), personalization=BlendedFfc(gamma=0.3, ridge=0.5))
    assembly = assemble(e)
    model, total = assembly.initial(), None
    for k in range(5):
        batches = assembly.clients[k].examples.in_order(500, device=torch.device("cpu"))
        total = Ffc().merge(total, Ffc().measure(assembly.local_model.classifier, batches), assembly.context(model, 0))
    assert personal_counts(e, model, total) == by_hand(e, model, gamma=0.3, ridge=0.5)


@pytest.mark.parametrize("head", [None, FixedRandom(), Orthonormal()])
@pytest.mark.parametrize("part", ["head", "encoder", "all"])
def test_fine_tuning_is_torchs_sgd_on_that_part(part: Any, head: Any) -> None:
    tune = FineTune(part=part, epochs=2, lr=0.05)
    model_value = Model(encoder=Mlp(widths=(16,))) if head is None else Model(encoder=Mlp(widths=(16,)), head=head)
    e = experiment(personalization=tune, model=model_value)
    assembly = assemble(e)
    model, theirs = assembly.initial(), copy.deepcopy(assembly.local_model.classifier)
    client = assembly.clients[2]
    reply, memory = handle_one(client, Evaluate(e.rounds, model, personalize=True), None)

    theirs.head.weight.requires_grad_(True)
    chosen = {"head": [theirs.head.weight], "encoder": list(theirs.encoder.parameters())}
    chosen["all"] = chosen["encoder"] + chosen["head"]
    optimizer = torch.optim.SGD(chosen[part], lr=0.05, momentum=0.9, weight_decay=1e-5)
    order, (x, y) = stream(0, Purpose.BATCHES, e.rounds, 2), rows(assembly, client.examples)
    for _ in range(2):
        for batch in torch.from_numpy(order.permutation(len(y))).split(64):
            optimizer.zero_grad()
            functional.cross_entropy(theirs(x[batch]), y[batch]).backward()
            optimizer.step()
    ours = assembly.local_model.classifier
    assert torch.allclose(ours.head.weight, theirs.head.weight, atol=1e-6)
    assert torch.allclose(ours.encoder[1].weight, theirs.encoder[1].weight, atol=1e-6)
    assert memory is None
    x, y = rows(assembly, client.held_out)
    assert isinstance(reply, EvaluateReply)
    assert reply.correct == int((theirs(x).argmax(dim=1) == y).sum())
    # The next request finds the bench as if nothing had happened.
    assert ours.head.weight.requires_grad == ours.head.learned
    assembly.local_model.load_state(model)
    assert all(torch.equal(t, assemble(e).local_model.classifier.state_dict()[n]) for n, t in ours.state_dict().items())


# Runs


@pytest.mark.parametrize("algorithm", [lg_fedavg(), fedrep()], ids=["lg-fedavg", "fedrep"])
def test_private_parts_are_evaluated_as_remembered(algorithm: Algorithm, tmp_path: Path) -> None:
    from spherefed.runs.loading import load

    e = experiment(algorithm=algorithm, local=LocalTraining(lr=0.1, epochs=1, head_epochs=1))
    result = run_to_end(e, tmp_path)
    assembly = assemble(e)
    each = {}
    for k in range(5):
        x, y = rows(assembly, assembly.clients[k].held_out)
        each[k] = (load(tmp_path, client=k)(x).argmax(dim=1) == y).double().mean().item()
    assert result["personal"]["clients"] == {str(k): pytest.approx(a) for k, a in each.items()}
    assert result["personal"]["mean"] == pytest.approx(np.mean(list(each.values())))
    assert result["personal"]["std"] == pytest.approx(np.std(list(each.values())))
    assert result["accuracy"]["trained"].keys() == {PERSONAL_TEST_BY_CLIENTS, PERSONAL_TEST_BY_SAMPLES}
    assert result["accuracy"]["trained"][PERSONAL_TEST_BY_CLIENTS] == pytest.approx(result["personal"]["mean"])


def test_blended_sums_are_sent_and_counted(tmp_path: Path) -> None:
    blended = experiment(calibration=Ffc(), personalization=BlendedFfc(gamma=0.1, ridge=0.1))
    local = replace(blended, personalization=LocalFfc(ridge=0.1))
    first, second = (run_to_end(e, tmp_path / e.personalization.kind) for e in (blended, local))
    sums = 8 * (2 + 16 * 17 // 2 + 16 * 10)
    assert first["traffic"]["personalize"]["down"] - second["traffic"]["personalize"]["down"] == sums
    assert second["traffic"]["personalize"]["up"] == message_bytes(EvaluateReply(0, 0, 0, 0)) + 3 * 10 * 8
    assert first["weights_sha256"] == second["weights_sha256"]
    assert "consistency" in read_lines(tmp_path / "local-ffc" / "rounds.jsonl")[0]
    assert json.loads((tmp_path / "local-ffc" / "result.json").read_text())["personal"]["std"] >= 0


@pytest.mark.parametrize(
    "changes",
    [
        {"data": Data(), "personalization": LocalFfc()},
        {"personalization": BlendedFfc()},
        {"algorithm": fedrep(), "calibration": Ffc()},
    ],
)
def test_what_cannot_be_meant_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        experiment(**changes)


def test_pooled_data_needs_something_held_out() -> None:
    with pytest.raises(ConfigError, match="held_out"):
        Data(pooled=True)


@pytest.mark.parametrize("value", [FineTune(part="all"), LocalFfc(ridge=1.0), BlendedFfc(gamma=2.0), None])
def test_personalizations_survive_plain_data(value: Any) -> None:
    e = experiment(personalization=value, calibration=Ffc(), algorithm=fedavg())
    assert experiment_from_mapping(to_plain(e)) == e
