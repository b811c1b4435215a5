"""Runs that are killed with SIGKILL at random moments lose nothing: the same bits, and at most one round is redone."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def killed(kills: int, seed: int) -> dict[str, Any]:
    tests = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), *filter(None, sys.path)])}
    command = [sys.executable, "-m", "support.killed", str(kills), str(seed)]
    ended = subprocess.run(command, check=True, env=environment, timeout=7200, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("kills", "seed"),
    [pytest.param(6, 1, marks=pytest.mark.slow), pytest.param(200, 13, marks=pytest.mark.soak)],
)
def test_runs_killed_at_random_moments_resume_to_the_same_bits(kills: int, seed: int) -> None:
    found = killed(kills, seed)
    assert found["kills"] >= kills
    assert (found["different"], found["unreadable"]) == (0, 0)
    assert found["most_rounds_redone"] <= 1
