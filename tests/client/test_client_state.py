"""Client states: stored by round on disk, equal after a kill and with any number of workers."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spherefed.assembly import assemble
from spherefed.client.client_state import InMemoryStates, StateDirectory
from spherefed.client.personalization import FineTune
from spherefed.client.training import LocalTraining
from spherefed.data.partition import Dirichlet, Iid
from spherefed.engines.local import InProcess
from spherefed.engines.workers import Parallel
from spherefed.errors import RunError
from spherefed.experiment import Data, Experiment, Model, experiment_from_mapping
from spherefed.files import read_tensors
from spherefed.messages import Failure
from spherefed.nn.encoders import Mlp
from spherefed.runs.directory import RunDirectory
from spherefed.runs.inspection import local_features
from spherefed.runs.loading import load
from spherefed.runs.round_log import CHECKPOINTS
from spherefed.runs.runner import Engine, run, run_to_end
from spherefed.schema import to_plain
from spherefed.server.algorithms import Algorithm, fedavg, feddyn, fedrep, lg_fedavg, moon, scaffold
from spherefed.server.federation import federate, train_request
from spherefed.tensors import digest
from support.small import handle_one

METHODS: dict[str, dict[str, Any]] = {
    "fedrep": {"algorithm": fedrep(), "local": LocalTraining(lr=0.05, epochs=1, head_epochs=1)},
    "scaffold": {"algorithm": scaffold()},
    "lg-fedavg": {"algorithm": lg_fedavg()},
    "feddyn": {"algorithm": feddyn(0.1)},
    "moon": {"algorithm": moon()},
}


def experiment(method: str, **changes: Any) -> Experiment:
    values: dict[str, Any] = {
        "name": method,
        "rounds": 4,
        "cohort": 3,
        "partition": Dirichlet(alpha=0.5, clients=5),
        "model": Model(encoder=Mlp(widths=(16,))),
        "local": LocalTraining(lr=0.05, epochs=1),
        "data": Data(held_out=0.2),
    }
    return Experiment(**(values | METHODS[method] | changes))


def remembered(path: Path) -> dict[str, str]:
    """Every memory file of a run by name, as a digest of its tensors."""
    return {file.name: digest(read_tensors(file)[0]) for file in sorted((path / "client_states").iterdir())}


def outcome(path: Path) -> tuple[Any, ...]:
    result = RunDirectory(path).result()
    return result["weights_sha256"], result["accuracy"], result["personal"], remembered(path)


# Stores


@pytest.fixture(params=["ram", "directory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> InMemoryStates | StateDirectory:
    return InMemoryStates() if request.param == "ram" else StateDirectory(tmp_path / "client_states")


def value(number: int) -> dict[str, torch.Tensor]:
    return {"x": torch.full((2,), float(number))}


def test_a_request_starts_from_the_newest_memory_before_its_round(store: InMemoryStates | StateDirectory) -> None:
    assert store.load(7, before=0) is None
    store.save(7, 2, value(2))
    store.save(7, 5, value(5))
    assert store.load(8, before=9) is None
    for before, expected in ((3, 2), (5, 2), (6, 5), (9, 5)):
        found = store.load(7, before=before)
        assert found is not None
        assert float(found["x"][0]) == expected


def test_a_repeated_round_overwrites_its_own_stamp_only(store: InMemoryStates | StateDirectory) -> None:
    store.save(0, 0, value(0))
    store.save(0, 1, value(1))
    store.save(0, 1, value(11))
    before, after = store.load(0, before=1), store.load(0, before=2)
    assert before is not None
    assert after is not None
    assert (float(before["x"][0]), float(after["x"][0])) == (0, 11)


def test_settling_keeps_what_the_next_rounds_start_from(tmp_path: Path) -> None:
    store = StateDirectory(tmp_path)
    for client, stamps in ((0, (0, 1, 2)), (1, (0,)), (2, (2,))):
        for stamp in stamps:
            store.save(client, stamp, value(stamp))
    store.prune(2)  # the checkpoint from which round 2 follows: round 2 itself may have to be repeated
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "0.1.safetensors",
        "0.2.safetensors",
        "1.0.safetensors",
        "2.2.safetensors",
    ]
    (tmp_path / ".0.3.safetensors.torn").write_bytes(b"half")
    store.roll_back(2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0.1.safetensors", "1.0.safetensors"]


def test_memory_that_is_gone_is_not_taken_for_a_first_round(tmp_path: Path) -> None:
    store = StateDirectory(tmp_path)
    for stamp in (0, 1):
        store.save(0, stamp, value(stamp))
        StateDirectory(tmp_path).prune(stamp + 1)
    assert StateDirectory(tmp_path).load(0, before=2) is not None
    with pytest.raises(RunError, match="before round 1 is missing"):
        StateDirectory(tmp_path).load(0, before=1)
    store.save(3, 1, value(1))
    assert StateDirectory(tmp_path).load(3, before=1) is None  # that was its first round indeed


# Runs


def test_stateless_methods_write_nothing(tmp_path: Path) -> None:
    run_to_end(replace(experiment("fedrep"), algorithm=fedavg(), rounds=1), tmp_path / "run")
    assert not (tmp_path / "run" / "client_states").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from spherefed.client import client_state as memory
from spherefed.experiment import read_experiment
from spherefed.client.personalization import FineTune
from spherefed.runs.runner import Engine, run_to_end

save, seen = memory.StateDirectory.save, []

def save_and_die(self, client, stamp, kept):
    save(self, client, stamp, kept)
    seen.append(stamp)
    if seen.count(2) == 2:  # two of three clients of round 2 have written their memory, the server has not
        os.kill(os.getpid(), signal.SIGKILL)

memory.StateDirectory.save = save_and_die
run_to_end(read_experiment(Path(sys.argv[1])), Path(sys.argv[2]), engine=Engine(checkpoint_every=int(sys.argv[3])))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "checkpoint_every"),
    [
        ("fedrep", 1),
        ("scaffold", 2),
        pytest.param("scaffold", 1, marks=pytest.mark.soak),
        pytest.param("feddyn", 2, marks=pytest.mark.soak),
        pytest.param("moon", 1, marks=pytest.mark.soak),
        pytest.param("lg-fedavg", 3, marks=pytest.mark.soak),
    ],
)
def test_a_run_killed_in_mid_round_resumes_to_the_same_bits(method: str, checkpoint_every: int, tmp_path: Path) -> None:
    e = experiment(method)
    run_to_end(e, tmp_path / "whole")
    killed = subprocess.run(
        [
            sys.executable,
            "-c",
            KILLED,
            tmp_path / "whole" / "experiment.json",
            tmp_path / "killed",
            str(checkpoint_every),
        ],
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert killed.returncode == -signal.SIGKILL
    torn = remembered(tmp_path / "killed")
    assert len([name for name in torn if ".2." in name]) == 2
    run_to_end(e, tmp_path / "killed", resume=True)
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


@pytest.mark.slow
def test_results_do_not_depend_on_workers(tmp_path: Path) -> None:
    for workers in (0, 2):
        run_to_end(experiment("scaffold", rounds=3), tmp_path / str(workers), engine=Engine(workers=workers))
    assert outcome(tmp_path / "0") == outcome(tmp_path / "2")


@pytest.mark.slow
def test_workers_agree_without_a_run_directory_too() -> None:
    """FedRep's heads then live in a folder that goes with the fleet: clients move from worker to worker."""
    assembly = assemble(experiment("fedrep", rounds=3))
    initial, plan = assembly.initial(), assembly.plan()
    alone = [r.model.digest() for r in federate(InProcess(assembly.clients), initial, plan)]
    fleet = Parallel(assembly, 2)
    try:
        assert [r.model.digest() for r in federate(fleet, initial, plan)] == alone
    finally:
        fleet.close()
    assert fleet._scratch is not None
    assert not Path(fleet._scratch.name).exists()


def test_a_run_that_takes_over_the_training_takes_over_the_memory(tmp_path: Path) -> None:
    e = experiment("fedrep")
    first = run_to_end(e, tmp_path / "first")
    tuned = replace(e, personalization=FineTune(part="head", epochs=1, lr=0.05))
    for _ in run(tuned, tmp_path / "second", trained=tmp_path / "first"):
        raise AssertionError("no round is left to run")
    second = RunDirectory(tmp_path / "second").result()
    assert second["weights_sha256"] == first["weights_sha256"]
    assert remembered(tmp_path / "second") == remembered(tmp_path / "first")
    assert second["personal"]["mean"] > first["personal"]["mean"]


def test_stopping_between_rounds_and_resuming_changes_nothing(tmp_path: Path) -> None:
    e = experiment("scaffold")
    run_to_end(e, tmp_path / "whole")
    for progress in run(e, tmp_path / "stopped", engine=Engine(checkpoint_every=3)):
        if progress.index == 1:
            break
    run_to_end(e, tmp_path / "stopped", resume=True)
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")


def test_one_stamp_per_client_is_left_in_the_end(tmp_path: Path) -> None:
    run_to_end(experiment("lg-fedavg"), tmp_path)
    clients = [name.split(".")[0] for name in remembered(tmp_path)]
    assert len(clients) == len(set(clients))


def test_a_personal_model_is_loaded_by_its_client(tmp_path: Path) -> None:
    e = experiment("fedrep", cohort=None)
    run_to_end(e, tmp_path)
    heads = [load(tmp_path, client=k).head.weight for k in range(2)]
    assert not torch.equal(heads[0], heads[1])
    assert torch.equal(heads[0], read_tensors(tmp_path / "client_states" / "0.3.safetensors")[0]["private.head.weight"])
    with pytest.raises(RunError, match="name the one whose model to load"):
        load(tmp_path)


def test_a_client_that_diverged_keeps_its_last_memory() -> None:
    assembly = assemble(experiment("fedrep"))
    store = InMemoryStates()
    fleet = InProcess(assembly.clients, store)
    model = assembly.initial()
    plan = assembly.plan()
    list(fleet.ask([0], train_request(plan, 0, model, {})))
    good = store.load(0, before=1)
    (answer,) = fleet.ask([0], replace(train_request(plan, 1, model, {}), lr=1e30))
    assert isinstance(answer, Failure)
    assert "diverged" in answer.cause
    assert store.load(0, before=2) is good


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_thousand_clients_with_fedrep_are_remembered_on_disk(tmp_path: Path) -> None:
    """Heads of 1,000 clients would be 82 MB; the process may grow by far less."""
    e = experiment(
        "fedrep",
        cohort=None,
        partition=Iid(clients=1000),
        model=Model(encoder=Mlp(widths=(2048,))),
        data=Data(held_out=0.0),
    )
    assembly = assemble(e)
    fleet = InProcess(assembly.clients, StateDirectory(tmp_path / "client_states"))
    request = train_request(assembly.plan(), 0, assembly.initial(), {})
    for _ in fleet.ask(range(50), request):
        pass
    before = resident_bytes()
    for answer in fleet.ask(range(1000), request):
        assert not isinstance(answer, Failure)
    grown = resident_bytes() - before
    files = list((tmp_path / "client_states").iterdir())
    assert len(files) == 1000
    assert sum(file.stat().st_size for file in files) > 80e6
    assert grown < 16e6, f"grew by {grown / 1e6:.1f} MB"


@pytest.mark.parametrize("method", ["scaffold", "fedrep"])
def test_where_only_the_older_checkpoint_is_whole_the_run_goes_on_from_it_to_the_same_bits(
    method: str, tmp_path: Path
) -> None:
    e = experiment(method, cohort=None)
    run_to_end(e, tmp_path / "whole")
    rounds = run(e, tmp_path / "damaged")
    for _ in range(3):
        next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    newest = tmp_path / "damaged" / CHECKPOINTS[0]  # of three, by turns
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    run_to_end(e, tmp_path / "damaged", resume=True)
    assert outcome(tmp_path / "damaged") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("method", ["scaffold", "fedrep"])
def test_where_a_state_that_the_older_checkpoint_needs_is_gone_nothing_is_deleted(method: str, tmp_path: Path) -> None:
    e = experiment(method, cohort=None)
    rounds = run(e, tmp_path)
    for _ in range(3):
        next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    newest = tmp_path / CHECKPOINTS[0]
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    (tmp_path / "client_states" / "1.1.safetensors").unlink()
    before = remembered(tmp_path)
    with pytest.raises(RunError, match="state of client 1, which trained in round 1, is missing"):
        run_to_end(e, tmp_path, resume=True)
    assert remembered(tmp_path) == before


def test_rounds_are_not_taken_over_from_a_run_without_its_last_checkpoint(tmp_path: Path) -> None:
    e = experiment("scaffold")
    run_to_end(e, tmp_path / "first")
    for name in CHECKPOINTS[::-1]:  # four rounds: the second file has the last
        (tmp_path / "first" / name).unlink()
        with pytest.raises(RunError, match="no checkpoint of its last round"):
            list(run(replace(e, personalization=FineTune()), tmp_path / f"after-{name}", trained=tmp_path / "first"))


# Asking for a round again (Fig. 3)


@pytest.mark.parametrize("method", ["scaffold", "fedrep"])
def test_local_models_are_had_again_from_a_checkpoint(method: str, tmp_path: Path) -> None:
    e = experiment(method, cohort=None)
    for progress in run(e, tmp_path):
        if progress.index == 1:
            break
    assembly, directory = assemble(e), RunDirectory(tmp_path)
    checkpoint = directory.round_log(assembly.experiment).newest_checkpoint()
    assert checkpoint is not None
    request = train_request(assembly.plan(), checkpoint.next_round, checkpoint.model, checkpoint.server_state)
    before = remembered(tmp_path)
    first, second = local_features(assembly, request, [3, 1], classes=[5, 7], client_states=directory.client_states())
    assert remembered(tmp_path) == before
    assert set(first.labels.tolist()) == {5, 7}
    assert torch.equal(first.indices, second.indices)
    assert not torch.equal(first.features, second.features)

    memory = directory.client_states().load(3, before=checkpoint.next_round)
    handle_one(assembly.clients[3], request, memory)
    weight = assembly.local_model.classifier.encoder[1].weight.detach()
    bias = assembly.local_model.classifier.encoder[1].bias.detach()
    x = assembly.dataset.test.inputs[assembly.dataset.test.labels == 5].reshape(-1, 64)
    by_hand = np.maximum(x.numpy() @ weight.numpy().T + bias.numpy(), 0)
    assert np.allclose(first.features[first.labels == 5].numpy(), by_hand, atol=1e-5)


def test_experiments_with_memory_survive_plain_data() -> None:
    for method in METHODS:
        e = experiment(method)
        assert experiment_from_mapping(to_plain(e)) == e
        assert e.algorithm.keeps_client_state
    assert not Algorithm().keeps_client_state
