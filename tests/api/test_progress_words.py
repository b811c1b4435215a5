"""The words in the display of progress."""

from dataclasses import replace
from pathlib import Path

import pytest

from spherefed.api.progress_words import clock_time, counted, short_label
from spherefed.recipes.experiments import digits
from spherefed.runs.jobs import Job


@pytest.mark.parametrize(
    ("name", "shown"),
    [("fedavg", "fedavg, seed 3"), ("fedavg+spherefed+ffc-gcv", "fedavg+spher…, seed 3")],
)
def test_a_long_name_is_shortened_and_the_seed_stays(name: str, shown: str) -> None:
    job = Job(name=name, experiment=replace(digits(), seed=3), out=Path("runs"))
    assert short_label(job, 21) == shown


def test_counts_are_as_wide_at_the_beginning_as_at_the_end() -> None:
    assert [counted(done, 100) for done in (0, 99, 100)] == ["  0/100", " 99/100", "100/100"]


def test_times_have_hours() -> None:
    assert clock_time(59.6) == "0:01:00"
