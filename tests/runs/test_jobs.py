"""Runs side by side: the same bits as in turn, shared trainings shared, failures passed on, no process left."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spherefed.calibration import Ffc
from spherefed.errors import ConfigError, DataError
from spherefed.experiment import Experiment, with_settings
from spherefed.recipes.experiments import digits
from spherefed.recipes.methods import methods
from spherefed.runs.comparison import compare, comparison_jobs
from spherefed.runs.directory import RunDirectory
from spherefed.runs.jobs import Job, JobEnd, JobRound, Watch, run_jobs
from spherefed.runs.runner import Engine

pytestmark = pytest.mark.slow

SMALL = ["rounds=3", "local.epochs=1", "data.examples=300", "partition.clients=4", "partition.alpha=1.0"]


def small() -> Experiment:
    return with_settings(digits(), SMALL)


def results(folder: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for path in sorted(folder.glob("*/seed-*")):
        found[str(path.relative_to(folder))] = {**RunDirectory(path).result(), "seconds": None}
    return found


def children(parent: int | None = None) -> set[str]:
    """Ids of the processes that `run_jobs` started below a process, this one by default."""
    command = ["ps", "-o", "pid=", "--ppid", str(parent or os.getpid())]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    return {pid for pid in listed.stdout.split() if "spawn_main" in cmdline(pid)}


def cmdline(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_side_by_side_gives_the_bits_of_one_after_the_other_and_trains_once(tmp_path: Path) -> None:
    built = methods(small(), "fedavg", ["ffc", "spherefed"], {})
    in_turn = [step.method for step in compare(built, 2, tmp_path / "turn", engine=Engine())]
    beside, watch = [], Watch()
    for step in compare(built, 2, tmp_path / "beside", engine=Engine(), jobs=2, watch=watch):
        beside.append(step.method)
        activity = watch[step.out].activity  # written by another process
        assert activity.round >= step.progress.index
        assert activity.clients == 4
        assert len(watch) <= 2
    assert watch == {}
    assert sorted(in_turn) == sorted(beside)
    assert "fedavg+ffc" not in beside  # it takes the rounds of fedavg
    assert results(tmp_path / "turn") == results(tmp_path / "beside") != {}
    shared = {
        (tmp_path / "beside" / name / "seed-0" / "rounds.jsonl").read_bytes() for name in ("fedavg", "fedavg+ffc")
    }
    assert len(shared) == 1
    assert children() == set()


def test_stopped_in_the_middle_no_process_is_left_and_the_rest_is_resumed(tmp_path: Path) -> None:
    built = methods(with_settings(small(), ["rounds=30"]), "fedavg", ["spherefed"], {})
    steps = compare(built, 1, tmp_path / "cut", engine=Engine(), jobs=2)
    next(steps)
    assert children() != set()
    steps.close()  # type: ignore[attr-defined]
    assert children() == set()
    rest = list(compare(built, 1, tmp_path / "cut", engine=Engine(), jobs=2, resume=True))
    assert 0 < len(rest) < 60
    list(compare(built, 1, tmp_path / "whole", engine=Engine()))
    assert results(tmp_path / "cut") == results(tmp_path / "whole")


def test_a_run_whose_process_is_killed_goes_on_in_a_new_one(tmp_path: Path) -> None:
    built = methods(with_settings(small(), ["rounds=40"]), "fedavg", [], {})
    killed = False
    for step in compare(built | {"other": replace(built["fedavg"], rounds=41)}, 1, tmp_path, engine=Engine(), jobs=2):
        if not killed and step.progress.index == 1:
            for pid in children():
                os.kill(int(pid), signal.SIGKILL)
            killed = True
    assert killed
    assert set(results(tmp_path)) == {"fedavg/seed-0", "other/seed-0"}


@pytest.mark.parametrize("processes", [1, 2])
def test_a_failed_job_fails_those_that_wait_for_it_and_no_other(processes: int, tmp_path: Path) -> None:
    bad = with_settings(small(), ["data.name=arrays:no-such-file.npz"])
    jobs = [
        Job(name="bad", experiment=bad, out=tmp_path / "bad"),
        Job(name="after", experiment=replace(bad, calibration=Ffc()), out=tmp_path / "after", trained=tmp_path / "bad"),
        Job(name="good", experiment=small(), out=tmp_path / "good"),
    ]
    events = list(run_jobs(jobs, engine=Engine(), processes=processes))
    ends = {event.job.name: event.error for event in events if isinstance(event, JobEnd)}
    assert isinstance(ends["bad"], DataError)
    assert isinstance(ends["after"], DataError)
    assert ends["good"] is None
    assert sum(isinstance(event, JobRound) for event in events) == 3


def test_jobs_and_workers_exclude_each_other(tmp_path: Path) -> None:
    jobs = comparison_jobs({"a": small()}, 2, tmp_path)
    with pytest.raises(ConfigError, match="leave out --engine and --workers"):
        run_jobs(jobs, engine=Engine(workers=2), processes=2)


def test_ctrl_c_ends_the_command_and_its_processes(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    settings = [word for setting in [*SMALL, "rounds=300"] for word in ("--set", setting)]
    command = [sys.executable, "-m", "spherefed.cli", "compare", "digits", "--seeds", "2", "--jobs", "2", *settings]
    process = subprocess.Popen([*command, "--out", str(out)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(out.glob("*/*/checkpoint.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.1)
    inner = children(process.pid)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "--resume" in said
    assert inner
    assert not any("spawn_main" in cmdline(pid) for pid in inner)
    begun = list(out.glob("*/seed-*/experiment.json"))  # a run that was about to begin has only its lock
    assert begun
    assert all(json.loads(path.read_text())["rounds"] == 300 for path in begun)
