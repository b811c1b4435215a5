"""Random faults on a real deployment: runs finish, and their weights are those of the clients that counted."""

from pathlib import Path

import pytest

from support.chaos import unleash


@pytest.mark.deployment
def test_a_run_survives_a_minute_of_random_faults(tmp_path: Path) -> None:
    report = unleash(tmp_path, 50.0, rounds=4, seed=0)
    assert report.runs >= 1
    assert report.faults


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1])
def test_runs_survive_a_quarter_of_an_hour_of_random_faults(seed: int, tmp_path: Path) -> None:
    report = unleash(tmp_path, 900.0, rounds=10, seed=seed, deadline=20.0)
    assert report.seconds >= 900
    assert report.runs >= 1
    assert len(report.faults) >= 4
