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

from small import assembled, blobs, in_process
from spherefed.assembly import Assembly
from spherefed.calibration import Ffc
from spherefed.data.examples import Augment
from spherefed.engines.local import MAX_ATTEMPTS, Parallel
from spherefed.errors import ConfigError
from spherefed.federation import Fleet, Round, calibrate, federate
from spherefed.messages import Evaluate, Failure, Reply, Request, Train


@dataclass(frozen=True)
class Delay:
    """Clients take their time, some more than others; the inputs stay as they are."""

    def __call__(self, inputs: Tensor, order: np.random.Generator) -> Tensor:
        word = hashlib.sha256(inputs.numpy().tobytes()).digest()[0]
        time.sleep(word / 255 * 0.02)
        return inputs


@dataclass(frozen=True)
class Suicide:
    """A worker kills itself in the middle of training, so many times in all; the inputs stay as they are."""

    folder: Path
    times: int

    def __call__(self, inputs: Tensor, order: np.random.Generator) -> Tensor:
        for number in range(self.times):
            try:
                (self.folder / str(number)).touch(exist_ok=False)
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)
        return inputs


@dataclass(frozen=True)
class Curse:
    """Whoever trains on the marked example dies, every time."""

    mark: float

    def __call__(self, inputs: Tensor, order: np.random.Generator) -> Tensor:
        if bool((inputs == self.mark).any()):
            os.kill(os.getpid(), signal.SIGKILL)
        return inputs


def with_augment(augment: Augment | None, **changes: object) -> Assembly:
    return assembled(blobs(augment=augment), **changes)


def rounds(fleet: Fleet, assembly: Assembly) -> list[Round]:
    return list(federate(fleet, with_augment(None).initial(), assembly.plan()))


def final(fleet: Fleet, assembly: Assembly) -> str:
    """SHA-256 of the weights after training and calibration."""
    model = rounds(fleet, assembly)[-1].model
    return calibrate(Ffc(), fleet, model, assembly.experiment.rounds).model.digest()


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


def test_one_worker_gives_the_same_weights_even_if_it_is_killed_while_idle(expected: str) -> None:
    assembly = with_augment(None)
    with closing(Parallel(assembly, 1)) as fleet:
        assert fleet.clients == range(4)
        assert final(fleet, assembly) == expected
        (child,) = multiprocessing.active_children()
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
        assert [r.refused for r in rounds(fleet, assembly)] == [(), (), ()]
        assert final(fleet, assembly) == expected
    assert not multiprocessing.active_children()


def test_three_workers_give_the_same_weights_in_any_order_of_dispatch_and_finish(expected: str) -> None:
    assembly = with_augment(Delay())
    with closing(Parallel(assembly, 3)) as fleet:
        assert final(fleet, assembly) == expected
        assert final(Shuffled(fleet), assembly) == expected
    assert not multiprocessing.active_children()


def test_two_workers_give_the_same_weights_even_after_an_ask_was_given_up_half_way(expected: str) -> None:
    assembly = with_augment(Delay())
    fleet = Parallel(assembly, 2)
    answers = fleet.ask(fleet.clients, Train(7, assembly.initial(), 3.0))
    assert next(answers).client == 0
    answers.close()  # type: ignore[attr-defined]
    assert final(fleet, assembly) == expected
    assert len(multiprocessing.active_children()) == 2
    next(fleet.ask(fleet.clients, Train(0, assembly.initial(), 0.5)))
    fleet.close()  # in mid-work
    assert not multiprocessing.active_children()
    fleet.close()  # and once more does no harm


def test_the_order_of_dispatch_does_not_matter_in_process(expected: str) -> None:
    assembly = with_augment(None)
    assert final(Shuffled(in_process(assembly)), assembly) == expected


def test_another_seed_gives_other_weights(expected: str) -> None:
    assembly = with_augment(None, seed=1)
    assert final(in_process(assembly), assembly) != expected


def test_a_worker_killed_in_mid_client_is_replaced_and_its_client_run_again(tmp_path: Path, expected: str) -> None:
    assembly = with_augment(Suicide(tmp_path, 1))
    with closing(Parallel(assembly, 1)) as fleet:
        done = rounds(fleet, assembly)
        assert [r.refused for r in done] == [(), (), ()]
        assert calibrate(Ffc(), fleet, done[-1].model, 3).model.digest() == expected
    assert (tmp_path / "0").exists()
    assert not multiprocessing.active_children()


def test_a_client_whose_worker_dies_twice_is_one_failure_and_the_others_go_on() -> None:
    whole = with_augment(None)
    marked = whole.partition.parts[2][0]
    assembly = with_augment(Curse(float(whole.dataset.train.inputs[marked].flatten()[0])), rounds=1)
    with closing(Parallel(assembly, 1)) as fleet:
        (done,) = rounds(fleet, assembly)
        (refusal,) = done.refused
        assert (refusal.client, refusal.cause) == (2, f"its worker process died {MAX_ATTEMPTS} times")
        assert done.clients == (0, 1, 3)
        # The fleet is whole again: a request that does not touch the cursed example is answered by everybody.
        answers = list(fleet.ask(fleet.clients, Evaluate(1, done.model)))
        assert [a.client for a in answers] == [0, 1, 2, 3]
        assert not any(isinstance(a, Failure) for a in answers)


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
