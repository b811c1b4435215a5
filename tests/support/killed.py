"""Runs that are killed at random moments and resumed: `python -m support.killed KILLS SEED` prints JSON.

Each run is a process that is forked from one interpreter, killed with SIGKILL after a random time, and resumed until it
is finished; then the next run begins, until there were so many kills.
"""

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spherefed.errors import RunError
from spherefed.experiment import Data, Experiment
from spherefed.runs.checking import check_run
from spherefed.runs.directory import RunDirectory
from spherefed.runs.round_log import ROUNDS, RoundLog, read_lines
from spherefed.runs.runner import run_to_end
from spherefed.server.algorithms import scaffold
from support.dying import experiment as stateless
from support.small import blobs, save_arrays, tiny


def stateful(folder: Path) -> Experiment:
    """Clients keep control variates between rounds."""
    return tiny(rounds=20, cohort=3, data=Data(name=f"arrays:{folder / 'data.npz'}"), algorithm=scaffold())


EXPERIMENTS: dict[str, Callable[[Path], Experiment]] = {"stateless": stateless, "stateful": stateful}


def run_until_killed(experiment: Experiment, out: Path, seconds: float) -> bool:
    """Begin or resume in a process of its own and kill it after these seconds; whether it was killed."""
    child = os.fork()
    if child == 0:
        try:
            run_to_end(experiment, out, resume=(out / "experiment.json").exists())
        except BaseException as error:
            print(f"child: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            if status:
                raise RuntimeError(f"{out}: the process ended with status {status}")
            return False
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def rounds_to_redo(out: Path) -> int:
    """Rounds whose line was written, but which have to be trained again; raises if anything cannot be read."""
    if not (out / "experiment.json").exists():
        return 0
    check_run(out)
    checkpoint = RoundLog(out).newest_checkpoint()
    next_round = 0 if checkpoint is None else checkpoint.next_round
    return sum(line["round"] >= next_round for line in read_lines(out / ROUNDS))


def kill_runs(kills: int, seed: int, folder: Path) -> dict[str, Any]:
    save_arrays(folder / "data.npz", blobs())
    rng = random.Random(seed)
    expected, took = {}, {}
    for name, make in EXPERIMENTS.items():
        began = time.monotonic()
        expected[name] = run_to_end(make(folder), folder / f"{name}-whole")["weights_sha256"]
        took[name] = time.monotonic() - began
    found = {"kills": 0, "runs": 0, "different": 0, "unreadable": 0, "most_rounds_redone": 0}
    while found["kills"] < kills:
        name = list(EXPERIMENTS)[found["runs"] % len(EXPERIMENTS)]
        experiment, out = EXPERIMENTS[name](folder), folder / f"run-{found['runs']}"
        while not RunDirectory(out).finished:
            seconds = rng.uniform(0, took[name] / 2) if found["kills"] < kills else 3600.0
            found["kills"] += run_until_killed(experiment, out, seconds)
            try:
                found["most_rounds_redone"] = max(found["most_rounds_redone"], rounds_to_redo(out))
            except RunError as error:
                print(error, file=sys.stderr, flush=True)
                found["unreadable"] += 1
        found["different"] += RunDirectory(out).result()["weights_sha256"] != expected[name]
        found["runs"] += 1
        shutil.rmtree(out)
    return found


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="spherefed-killed-"))
    try:
        print(json.dumps(kill_runs(int(sys.argv[1]), int(sys.argv[2]), folder)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
