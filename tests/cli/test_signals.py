"""SIGTERM saves the last whole round and exits with 143; a second signal ends the process at once."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from spherefed.cli.signals import GRACE, terminable
from spherefed.runs.round_log import RoundLog
from spherefed.runs.runner import run_to_end
from support import dying, stopping

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stopped")


@pytest.fixture(scope="module")
def ends(folder: Path) -> dict[str, Any]:
    tests = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), *filter(None, sys.path)])}
    command = [sys.executable, "-m", "support.stopping", str(folder)]
    ended = subprocess.run(command, check=True, env=environment, timeout=300, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", stopping.WAYS)
def test_signals_end_the_command_with_their_code(name: str, ends: dict[str, Any]) -> None:
    assert ends[name]["code"] == stopping.WAYS[name][1]
    assert ends[name]["seconds"] < 120  # a process that is stuck would never end


@pytest.mark.parametrize("name", ["terminated", "interrupted"])
def test_the_last_whole_round_is_saved_and_the_run_resumes_to_the_same_weights(
    name: str, folder: Path, ends: dict[str, Any]
) -> None:
    checkpoint = RoundLog(folder / name).newest_checkpoint()
    assert checkpoint is not None
    assert checkpoint.next_round == 5  # the signal came in the sixth round; checkpoints were due every 100 rounds
    whole = run_to_end(dying.experiment(folder), folder / f"whole-{name}")
    resumed = run_to_end(dying.experiment(folder), folder / name, resume=True)
    assert resumed["weights_sha256"] == whole["weights_sha256"]


def test_a_stuck_process_without_a_checkpoint_can_still_be_resumed(folder: Path, ends: dict[str, Any]) -> None:
    whole = run_to_end(dying.experiment(folder), folder / "whole")
    resumed = run_to_end(dying.experiment(folder), folder / "stuck, one signal", resume=True)
    assert resumed["weights_sha256"] == whole["weights_sha256"]


def test_the_grace_is_below_ten_seconds_and_other_threads_are_left_alone() -> None:
    assert GRACE < 10
    entered = []

    def enter() -> None:
        with terminable():
            entered.append(True)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert entered == [True]
