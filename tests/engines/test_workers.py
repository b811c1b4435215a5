"""Every engine gives the same bits, whatever happens to its processes."""

import hashlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from spherefed.assembly import Assembly
from spherefed.data.examples import Augment
from spherefed.engines.activity import CALIBRATION
from spherefed.engines.workers import MAX_ATTEMPTS, Parallel
from spherefed.errors import ConfigError
from spherefed.messages import Failure, Reply, Request, Train
from spherefed.server.federation import Fleet, Round, federate
from support.small import assembled, blobs, calibrated, in_process


@dataclass(frozen=True)
class Delay:
    """Clients take their time, some more than others; the inputs stay as they are."""

    def __call__(self, inputs: Tensor, order: np.random.Generator) -> Tensor:
        word = hashlib.sha256(inputs.numpy().tobytes()).digest()[0]
        time.sleep(word / 255 * 0.02)
        return inputs


@dataclass(frozen=True)
class Doom:
    """Workers kill themselves in the middle of training when a file in this folder says so."""

    folder: Path

    @property
    def once(self) -> Path:
        """While it exists, the next worker to train dies, and takes the file with it."""
        return self.folder / "once"

    @property
    def cursed(self) -> Path:
        """While it exists, whoever trains on an example that holds this number dies."""
        return self.folder / "cursed"

    @property
    def stopped(self) -> Path:
        """While it exists, the next worker to train is stopped (SIGSTOP), and takes the file with it."""
        return self.folder / "stopped"

    def __call__(self, inputs: Tensor, order: np.random.Generator) -> Tensor:
        if self.stopped.exists():
            self.stopped.unlink()
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.once.exists():
            self.once.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.cursed.exists() and bool((inputs == float(self.cursed.read_text())).any()):
            os.kill(os.getpid(), signal.SIGKILL)
        return inputs


def with_augment(augment: Augment | None, **changes: object) -> Assembly:
    return assembled(blobs(augment=augment), **changes)


def rounds(fleet: Fleet, assembly: Assembly) -> list[Round]:
    return list(federate(fleet, with_augment(None).initial(), assembly.plan()))


def final(fleet: Fleet, assembly: Assembly) -> str:
    """SHA-256 of the weights after training and calibration."""
    model = rounds(fleet, assembly)[-1].model
    return calibrated(assembly, fleet, model).model.digest()


@pytest.fixture(scope="module")
def expected() -> str:
    assembly = with_augment(None)
    return final(in_process(assembly), assembly)


class Shuffled:
    """A fleet that dispatches in another order than asked, and hands answers on in the order asked."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.rng = fleet, np.random.default_rng(0)

    @property
    def clients(self) -> Sequence[int]:
        return self.fleet.clients

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Reply | Failure]:
        answers = {a.client: a for a in self.fleet.ask(self.rng.permutation(clients).tolist(), request)}
        return iter([answers[client] for client in clients])


@pytest.fixture(scope="module")
def doom(tmp_path_factory: pytest.TempPathFactory) -> Doom:
    return Doom(tmp_path_factory.mktemp("doom"))


@pytest.fixture(scope="module")
def one_worker(doom: Doom) -> Iterator[Parallel]:
    """One process for several tests, because starting one takes seconds; each test leaves it fit for work."""
    with closing(Parallel(with_augment(doom), 1)) as fleet:
        yield fleet


@pytest.mark.slow
def test_one_worker_gives_the_same_weights(one_worker: Parallel, expected: str) -> None:
    assert one_worker.clients == range(4)
    assert final(one_worker, with_augment(None)) == expected
    assert (one_worker.activity.phase, one_worker.activity.clients_done) == (CALIBRATION, 4)
    assert one_worker.activity.fraction == 1.0


@pytest.mark.slow
def test_a_worker_killed_in_mid_client_is_replaced_and_its_client_run_again(
    one_worker: Parallel, doom: Doom, expected: str
) -> None:
    doom.once.touch()
    assembly = with_augment(None)
    done = rounds(one_worker, assembly)
    assert not doom.once.exists()
    assert [r.rejected for r in done] == [(), (), ()]
    assert calibrated(assembly, one_worker, done[-1].model).model.digest() == expected


@pytest.mark.slow
def test_a_client_whose_worker_dies_twice_is_one_failure_and_the_others_go_on(one_worker: Parallel, doom: Doom) -> None:
    assembly = with_augment(None, rounds=1)
    marked = assembly.partition.parts[2][0]
    doom.cursed.write_text(repr(assembly.dataset.train.inputs[marked].flatten()[0].item()))
    (done,) = rounds(one_worker, assembly)
    doom.cursed.unlink()
    (rejection,) = done.rejected
    assert (rejection.client, rejection.cause) == (2, f"its worker process died {MAX_ATTEMPTS} times")
    assert done.clients == (0, 1, 3)
    (again,) = rounds(one_worker, assembly)  # the fleet is whole again
    assert again.clients == (0, 1, 2, 3)


@pytest.mark.slow
def test_a_stopped_worker_is_killed_after_the_deadline_and_its_client_rejected(doom: Doom, expected: str) -> None:
    assembly = with_augment(doom, deadline=6.0)
    before = set(multiprocessing.active_children())
    with closing(Parallel(assembly, 1)) as fleet:
        doom.stopped.touch()
        done = next(federate(fleet, with_augment(None).initial(), assembly.plan()))
        (rejection,) = done.rejected
        assert rejection.cause == "did not answer within 6 s"
        assert len(done.clients) == 3
        (child,) = set(multiprocessing.active_children()) - before
        os.kill(child.pid or 0, signal.SIGSTOP)  # while it is idle: the next request meets a stopped process
        assert final(fleet, with_augment(None)) != ""
    assert set(multiprocessing.active_children()) == before


@pytest.mark.soak
def test_a_worker_killed_while_idle_is_replaced_without_a_failure(expected: str) -> None:
    assembly = with_augment(None)
    with closing(Parallel(assembly, 1)) as fleet:
        list(fleet.ask([0], Train(0, assembly.initial(), 0.5)))
        (child,) = multiprocessing.active_children()
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
        assert final(fleet, assembly) == expected


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
def test_more_workers_give_the_same_weights_in_any_order_of_dispatch_and_finish(workers: int, expected: str) -> None:
    before = set(multiprocessing.active_children())
    assembly = with_augment(Delay())
    fleet = Parallel(assembly, workers)
    assert final(fleet, assembly) == expected
    answers = fleet.ask(fleet.clients, Train(7, assembly.initial(), 3.0))
    assert next(answers).client == 0
    answers.close()  # type: ignore[attr-defined]
    assert final(Shuffled(fleet), assembly) == expected  # what was given up half-way does not poison the next
    assert len(set(multiprocessing.active_children()) - before) == workers
    next(fleet.ask(fleet.clients, Train(0, assembly.initial(), 0.5)))
    fleet.close()  # in mid-work
    assert set(multiprocessing.active_children()) == before
    fleet.close()  # and once more does no harm


def test_the_order_of_dispatch_does_not_matter_in_process(expected: str) -> None:
    assembly = with_augment(None)
    assert final(Shuffled(in_process(assembly)), assembly) == expected


def test_another_seed_gives_other_weights(expected: str) -> None:
    assembly = with_augment(None, seed=1)
    assert final(in_process(assembly), assembly) != expected


@pytest.mark.parametrize("workers", [0, -1])
def test_a_fleet_needs_a_worker(workers: int) -> None:
    with pytest.raises(ConfigError, match="workers"):
        Parallel(with_augment(None), workers)


def test_whatever_goes_wrong_in_a_client_is_a_failure_that_names_it() -> None:
    def explode(inputs: Tensor, order: np.random.Generator) -> Tensor:
        raise MemoryError("no room")

    assembly = with_augment(explode)
    answers = list(in_process(assembly).ask([3, 1], Train(0, assembly.initial(), 0.5)))
    assert answers == [Failure(3, "MemoryError: no room"), Failure(1, "MemoryError: no room")]
