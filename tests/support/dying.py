"""Runs that are killed with SIGKILL, for the tests of resuming: `python -m support.dying FOLDER`.

Each way of dying gets a process of its own, forked from one interpreter because importing torch takes seconds.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spherefed.client import handle as client
from spherefed.experiment import Data, Experiment
from spherefed.runs import finish, round_log, runner
from spherefed.server.algorithms import Algorithm
from spherefed.server.optimizers import ServerSgd
from support.small import blobs, save_arrays, tiny

ROUNDS = 20


def experiment(folder: Path) -> Experiment:
    """With a server that remembers and a cohort that is drawn, so that there is something to lose."""
    return tiny(
        rounds=ROUNDS,
        cohort=3,
        data=Data(name=f"arrays:{folder / 'data.npz'}"),
        algorithm=Algorithm(server=ServerSgd(lr=0.9, momentum=0.5)),
    )


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(number: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, deadly at its so-manieth call."""
    calls = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return die() if calls == number else function(*args, **kwargs)

    return wrapped


def between_rounds(folder: Path) -> None:
    for progress in runner.run(experiment(folder), folder / "between"):
        if progress.index == 9:
            die()


def in_mid_round(folder: Path) -> None:
    client.train = at_call(10 * 3 + 2, client.train)
    runner.run_to_end(experiment(folder), folder / "mid-round")


def between_checkpoints(folder: Path) -> None:
    client.train = at_call(11 * 3 + 2, client.train)
    runner.run_to_end(experiment(folder), folder / "between-checkpoints", engine=runner.Engine(checkpoint_every=3))


def before_the_first_checkpoint(folder: Path) -> None:
    client.train = at_call(2 * 3 + 1, client.train)
    runner.run_to_end(experiment(folder), folder / "before-checkpoint", engine=runner.Engine(checkpoint_every=5))


def in_mid_checkpoint(folder: Path) -> None:
    overwrite, calls = round_log.overwrite, 0

    def torn(path: Path, content: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls == 13:
            with path.open("r+b") as file:
                file.write(content[: len(content) // 2])
            die()
        overwrite(path, content)

    round_log.overwrite = torn
    runner.run_to_end(experiment(folder), folder / "torn")


def in_the_first_checkpoint(folder: Path) -> None:
    write = round_log.write_bytes

    def torn(path: Path, content: bytes) -> None:
        if path.name in round_log.CHECKPOINTS:
            os.fsync = die
        write(path, content)

    round_log.write_bytes = torn
    runner.run_to_end(experiment(folder), folder / "first-checkpoint")


def while_finishing(folder: Path) -> None:
    finish.calibrate = die  # type: ignore[assignment]
    runner.run_to_end(experiment(folder), folder / "finishing")


WAYS = {
    "between": between_rounds,
    "mid-round": in_mid_round,
    "between-checkpoints": between_checkpoints,
    "before-checkpoint": before_the_first_checkpoint,
    "torn": in_mid_checkpoint,
    "first-checkpoint": in_the_first_checkpoint,
    "finishing": while_finishing,
}


def main(folder: Path) -> None:
    save_arrays(folder / "data.npz", blobs())
    for way in WAYS.values():
        child = os.fork()
        if child == 0:
            way(folder)
            os._exit(0)  # it should not have lived so long
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), way
        assert os.WTERMSIG(status) == signal.SIGKILL, way


if __name__ == "__main__":
    main(Path(sys.argv[1]))
