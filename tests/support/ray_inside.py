"""The Ray engine with a real Ray: collected by `test_ray.py`, which runs it where nothing but loopback is there."""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spherefed.assembly import Assembly, assemble
from spherefed.calibration import Ccvr, Ffc
from spherefed.client.training import LocalTraining
from spherefed.data.examples import Augment
from spherefed.data.partition import Dirichlet, Iid
from spherefed.engines.local import InProcess
from spherefed.engines.ray import RayFleet, ray
from spherefed.engines.ray_cluster import Cluster
from spherefed.errors import ConfigError, EngineError
from spherefed.experiment import Data, Experiment, Model
from spherefed.files import read_tensors
from spherefed.losses import MeanSquaredError
from spherefed.messages import Failure, Train
from spherefed.nn.encoders import CallableEncoder, Mlp
from spherefed.nn.heads import Orthonormal
from spherefed.report.watch import watch_page
from spherefed.runs.loading import load
from spherefed.runs.runner import Engine, run, run_to_end
from spherefed.server.algorithms import fednova, fedrep
from spherefed.server.collection import calibrate
from spherefed.server.federation import Fleet, Round, federate
from spherefed.tensors import digest
from support.namespace import ray_processes
from support.small import assembled, blobs, in_process


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Cluster]:
    """One Ray for all tests, because starting one takes seconds; fleets use it as it is and leave it open."""
    assert ray_processes() == []
    home = set(Path.home().iterdir())
    here = Cluster(None, 2)
    yield here
    scratch = here._scratch
    assert scratch is not None
    assert Path(scratch.name).exists()
    here.close()
    assert not Path(scratch.name).exists()
    assert set(Path.home().iterdir()) == home  # no token, no logs
    wait_until(lambda: ray_processes() == [])


def wait_until(condition: Any, seconds: float = 30) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "waited for too long"
        time.sleep(0.02)


# The same bits as the local engine


def digits(**changes: Any) -> Experiment:
    """Four clients, three rounds."""
    values: dict[str, Any] = {
        "name": "agree",
        "rounds": 3,
        "partition": Dirichlet(alpha=0.5, clients=4),
        "model": Model(encoder=Mlp(widths=(16,))),
        "local": LocalTraining(lr=0.05, epochs=1),
        "stack": 0,  # clients that die one by one
    }
    return Experiment(**(values | changes))


SPHERE = {
    "model": Model(encoder=Mlp(widths=(16,)), head=Orthonormal(), normalize=True),
    "loss": MeanSquaredError(),
    "calibration": Ffc(),
    "local": LocalTraining(lr=1.0, epochs=1),
}
CALIBRATED = {"spherefed + ffc": SPHERE, "fednova + ccvr": {"algorithm": fednova(), "calibration": Ccvr()}}


def digests(fleet: Fleet, assembly: Assembly) -> tuple[str, str]:
    """SHA-256 of the final weights and of the summed statistics."""
    calibration = assembly.experiment.calibration
    assert calibration is not None
    rounds = list(federate(fleet, assembly.initial(), assembly.plan()))
    model = rounds[-1].model
    calibrated = calibrate(calibration, fleet, model, assembly.context(model, assembly.experiment.rounds))
    assert [r.rejected for r in rounds] == [()] * assembly.experiment.rounds
    return calibrated.model.digest(), digest(calibrated.total)


@pytest.mark.parametrize("stack", [0, 3])
@pytest.mark.parametrize("method", CALIBRATED)
def test_ray_gives_the_weights_and_statistics_of_the_local_engine(method: str, stack: int) -> None:
    experiment = digits(**CALIBRATED[method], stack=stack)
    here = assemble(experiment)
    expected = digests(InProcess(here.clients), here)
    there = assemble(experiment)
    with closing(RayFleet(there, 1)) as fleet:
        assert digests(fleet, there) == expected


def test_what_clients_remember_travels_and_is_kept_in_the_run_directory(tmp_path: Path) -> None:
    experiment = digits(
        algorithm=fedrep(),
        local=LocalTraining(lr=0.05, epochs=1, head_epochs=1),
        data=Data(held_out=0.2),
        cohort=3,
    )
    outcomes = []
    for engine in (Engine(), Engine(kind="ray", workers=2)):
        path = tmp_path / engine.kind
        result = run_to_end(experiment, path, engine=engine)
        memory = {file.name: digest(read_tensors(file)[0]) for file in (path / "client_states").iterdir()}
        outcomes.append((result["weights_sha256"], result["accuracy"], result["personal"], memory))
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0][-1]) == 4


OWN_NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layer = torch.nn.Linear(64, width)

    def forward(self, x):
        return torch.tanh(self.layer(x.flatten(1)))
"""


def test_actors_find_an_own_encoder_in_the_folder_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module is on no path of the actors; they get its folder and compare its source."""
    (tmp_path / "net_of_a_user.py").write_text(OWN_NET)
    monkeypatch.chdir(tmp_path)
    experiment = digits(model=Model(encoder=CallableEncoder("net_of_a_user:Net", (("width", 12),))))
    engines = (Engine(), Engine(kind="ray", workers=2))
    results = [run_to_end(experiment, tmp_path / engine.kind, engine=engine) for engine in engines]
    assert results[0]["weights_sha256"] == results[1]["weights_sha256"]
    assert load(tmp_path / "ray")(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


# Whatever happens to actors


@dataclass(frozen=True)
class Fate:
    """What becomes of whoever trains next, as files in this folder say."""

    folder: Path

    @property
    def death(self) -> Path:
        """While it exists, the next actor to train dies, and takes the file with it."""
        return self.folder / "death"

    @property
    def sleep(self) -> Path:
        """While it exists, the next actor to train takes the file and falls asleep."""
        return self.folder / "sleep"

    def __call__(self, inputs: Tensor, order: np.random.Generator) -> Tensor:
        for file in (self.death, self.sleep):
            try:
                file.unlink()
            except FileNotFoundError:
                continue
            if file == self.death:
                time.sleep(0.5)  # until the answer to the ping before is on its way: the actor is then known to work
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
        return inputs


def test_the_watched_page_follows_a_run_on_ray(tmp_path: Path) -> None:
    out, page, over, pages = tmp_path / "run", tmp_path / "page.html", threading.Event(), list[str]()

    def watch() -> None:
        for step in watch_page([out], page, interval=0.2, sleep=over.wait):
            # The page has no-break spaces between numbers and units.
            pages.extend([page.read_text(encoding="utf-8").replace("\xa0", " ")] if step.status is not None else [])
            if over.is_set():
                return

    experiment = digits(rounds=5000, local=LocalTraining(lr=0.05, epochs=10))
    ends = time.monotonic() + 240  # as many rounds as it takes; a second or two on a quiet machine
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with closing(run(experiment, out, engine=Engine(kind="ray", workers=1))) as rounds:  # type: ignore[type-var]
            for _ in rounds:
                if len(set(rounds_within(pages))) >= 2 or not watcher.is_alive() or time.monotonic() > ends:
                    break  # the run is stopped here, and can be resumed
    finally:
        over.set()
        watcher.join()
    going = [text for text in pages if ">running" in text]
    assert len(set(rounds_within(going))) >= 2, "pages of two rounds show that some of the clients are done"
    assert all('<meta http-equiv="refresh"' in text for text in going)
    assert re.search(r"running, [\d.]+ \w+ left", going[-1])
    assert "Accuracy per round" in going[-1]
    last = page.read_text(encoding="utf-8")
    assert "nothing runs here; continue with --resume" in last
    assert '<meta http-equiv="refresh"' not in last


def rounds_within(pages: list[str]) -> list[str]:
    """The rounds on pages that were written while one, two or three of the four clients were done."""
    pattern = r"round (\d+) of 5000, [123] of 4 clients, loss \S+, accuracy [\d.]+ %"
    return [number for text in pages for number in re.findall(pattern, text)]


@pytest.mark.soak
def test_an_actor_that_cannot_begin_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    # Before the tests that share a fleet: its two actors hold both of the cluster's CPUs.
    assembly = assembled()
    broken = replace(
        assembly, dataset=replace(assembly.dataset, memory_mapped=True), experiment=digits(data=Data(name="cifar10"))
    )
    with pytest.raises(EngineError, match=r"could not start: .*cifar10"):
        RayFleet(broken, 1, data_root=str(tmp_path))


@pytest.fixture(scope="module")
def fate(tmp_path_factory: pytest.TempPathFactory) -> Fate:
    return Fate(tmp_path_factory.mktemp("fate"))


@pytest.fixture(scope="module")
def fleet(fate: Fate) -> Iterator[RayFleet]:
    """Two actors for several tests; each test leaves them fit for work."""
    with closing(RayFleet(many(augment=fate), 2)) as fleet:
        yield fleet


def many(augment: Augment | None = None) -> Assembly:
    """So many clients that actors are given some in advance."""
    return assembled(blobs(augment=augment), partition=Iid(clients=10))


def rounds(fleet: Fleet) -> list[Round]:
    assembly = many()
    return list(federate(fleet, assembly.initial(), assembly.plan()))


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return [r.model.digest() for r in rounds(in_process(many()))]


def weights(done: list[Round]) -> list[str]:
    return [r.model.digest() for r in done]


def test_an_actor_killed_in_mid_round_costs_one_client_and_the_next_round_is_whole(
    fleet: RayFleet, fate: Fate, expected: list[str]
) -> None:
    fate.death.touch()
    done = rounds(fleet)
    assert not fate.death.exists()
    assert [len(r.clients) for r in done] == [9, 10, 10]
    (rejection,) = done[0].rejected
    assert rejection.cause == "its actor died"
    wait_until(lambda: rounds(fleet) is not None and len(fleet.nodes) == 2)
    assert weights(rounds(fleet)) == expected


def test_an_actor_killed_while_idle_costs_nothing(fleet: RayFleet, expected: list[str]) -> None:
    ray.kill(fleet._slots[0].actor)
    done = rounds(fleet)
    assert [r.rejected for r in done] == [(), (), ()]
    assert weights(done) == expected


def test_clients_that_are_late_fail_and_do_not_hold_up_the_next_request(
    fleet: RayFleet, fate: Fate, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_until(lambda: rounds(fleet) is not None and len(fleet.nodes) == 2)
    request = Train(0, many().initial(), 0.5)
    fate.sleep.touch()
    monkeypatch.setattr(fleet, "_deadline", 2.0)
    began = time.monotonic()
    answers = list(fleet.ask(fleet.clients, request))
    assert time.monotonic() - began < 5
    assert [answer.client for answer in answers] == list(range(10))
    (failure,) = [answer for answer in answers if isinstance(answer, Failure)]
    assert failure.cause == "did not answer within 2 s"
    monkeypatch.undo()
    assert weights(rounds(fleet)) == expected


@pytest.mark.soak
def test_a_request_given_up_half_way_does_not_poison_the_next(fleet: RayFleet, expected: list[str]) -> None:
    answers = fleet.ask(fleet.clients, Train(7, many().initial(), 3.0))
    assert next(answers).client == 0
    answers.close()  # type: ignore[attr-defined]
    assert weights(rounds(fleet)) == expected


def test_what_goes_wrong_in_a_client_is_a_failure_that_names_it(fleet: RayFleet) -> None:
    request = Train(0, replace(many().initial(), params={}), 0.5)
    answers = list(fleet.ask([3, 1], request))
    assert [answer.client for answer in answers] == [3, 1]
    assert all(isinstance(answer, Failure) and "ModelError" in answer.cause for answer in answers)


def test_requests_are_freed_when_they_are_answered(fleet: RayFleet) -> None:
    request = Train(0, many().initial(), 0.5, {"x": torch.zeros(5_000_000)})  # 20 MB

    def used() -> float:
        return float(ray.cluster_resources()["object_store_memory"] - ray.available_resources()["object_store_memory"])

    assert used() < 10e6
    for ended in (False, True):
        answers = fleet.ask([0, 1], request)
        next(answers)
        wait_until(lambda: used() > 15e6)
        if ended:
            assert len(list(answers)) == 1
        del answers
        wait_until(lambda: used() < 10e6)


def test_a_fleet_cannot_have_fewer_than_no_actors() -> None:
    with pytest.raises(ConfigError, match="workers"):
        RayFleet(assembled(), -1)
