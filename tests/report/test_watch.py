"""Watching runs: their status from files alone, and a page that is written again until all runs are finished."""

import fcntl
import os
from pathlib import Path

import pytest

from spherefed.engines.activity import Activity, published, read_activity
from spherefed.messages import ModelState, Train
from spherefed.report.reports import read_report
from spherefed.report.status import read_status, seconds_left, status_section
from spherefed.report.watch import watch_page
from support.known_runs import FFC, experiment, write_run


class Fleet:
    """Only what is published of a fleet."""

    def __init__(self) -> None:
        self.activity = Activity()


def test_a_run_is_running_as_long_as_its_directory_is_locked(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", experiment(), 0.8, finished=False)
    write_run(tmp_path / "b", experiment(1), 0.8)
    report = read_report([tmp_path], unfinished=True)
    assert [each.state for each in read_status(report).runs] == ["stopped", "finished"]
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert [each.state for each in read_status(report).runs] == ["running", "finished"]
    finally:
        os.close(handle)
    assert [each.state for each in read_status(report).runs] == ["stopped", "finished"]


def test_the_status_counts_clients_within_a_round(tmp_path: Path) -> None:
    path = write_run(
        tmp_path / "a", experiment(), 0.8, finished=False, rejections=[{"round": 1, "client": 0, "cause": "x"}]
    )
    fleet, parts = Fleet(), [range(10), range(30), range(60)]
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with published(fleet, path):
            fleet.activity.begin(Train(2, ModelState({}, {}), 0.1), [0, 1, 2], parts)  # type: ignore[arg-type]
            fleet.activity.advance([0, 1], parts)  # type: ignore[arg-type]
            status = read_status(read_report([tmp_path], unfinished=True))
    finally:
        os.close(handle)
    (run,) = status.runs
    assert (run.phase, run.clients_done, run.clients, run.within) == ("training", 2, 3, 0.4)
    assert run.fraction == pytest.approx(2.4 / 4)
    assert run.seconds_left == pytest.approx(1.6 * 0.5), "the rounds took half a second each"
    text = str(status_section(status))
    for said in ("round 3 of 4", "2 of 3 clients", "loss 1", "accuracy 40.00 %", "1 rejected replies", "0.80 s left"):
        assert said in text, said
    assert read_activity(path) is None, "the file is gone when the run ends"


def test_clients_of_the_round_before_are_not_shown_as_those_of_the_current_round(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", experiment(), 0.8, finished=False)
    fleet, parts = Fleet(), [range(10), range(30)]
    with (path / "rounds.jsonl").open() as lines:
        done = len(list(lines))
    texts = []
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with published(fleet, path):
            for number in (done - 1, done):
                fleet.activity.begin(Train(number, ModelState({}, {}), 0.1), [0, 1], parts)  # type: ignore[arg-type]
                fleet.activity.advance([0, 1], parts)  # type: ignore[arg-type]
                texts.append(str(status_section(read_status(read_report([tmp_path], unfinished=True)))))
    finally:
        os.close(handle)
    assert ["2 of 2 clients" in text for text in texts] == [False, True]


def test_the_time_left_is_unknown_before_the_first_round_and_after_the_last(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment(), 0.8)
    write_run(tmp_path / "b", experiment(1), 0.8, finished=False)
    finished, going = read_report([tmp_path], unfinished=True).runs
    assert seconds_left(finished, 0.0) is None
    assert seconds_left(going, 0.5) == pytest.approx(1.5 * 0.5)
    (tmp_path / "b/rounds.jsonl").write_text("")
    assert seconds_left(read_report([tmp_path], unfinished=True).runs[1], 0.0) is None


def test_sites_that_are_missing_are_named_while_the_run_goes_on(tmp_path: Path) -> None:
    write_run(
        tmp_path / "a", experiment(partition={"kind": "sites", "clients": 3}), 0.8, finished=False,
        counts=((0, 0),) * 3, sites=("north", "east", "west"), missing_since={1: 1},
        rejections=[{"round": 1, "client": 1, "cause": "not connected"}],
    )  # fmt: skip
    text = str(status_section(read_status(read_report([tmp_path], unfinished=True))))
    assert "2 of 3 sites took part in the last round; east missing since round 2 (not connected)." in text


@pytest.mark.slow
def test_a_page_is_written_until_all_runs_are_finished(tmp_path: Path) -> None:
    runs, page = tmp_path / "runs", tmp_path / "page.html"
    now = [0.0]
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        now[0] += seconds
        if len(naps) == 1:
            assert not page.exists(), "there is no run yet"
            write_run(runs / "a", experiment(calibration=FFC), 0.8, finished=False)
        if len(naps) == 2:
            text = page.read_text()
            assert '<meta http-equiv="refresh" content="5">' in text
            assert "stopped" in text
            assert "Accuracy per round" in text, "curves of a run that is not finished"
            assert "<h2>Result</h2>" not in text
            for file in (runs / "a").iterdir():
                file.unlink()
            (runs / "a").rmdir()
            write_run(runs / "a", experiment(calibration=FFC), 0.8, 0.9)

    steps = list(watch_page([runs], page, interval=5, grace=12, sleep=sleep, clock=lambda: now[0]))
    assert [step.status is None for step in steps[:2]] == [True, False]
    assert naps == [5] * 5, "three more pages in the time in which another run may begin"
    text = page.read_text()
    assert '<meta http-equiv="refresh"' not in text
    assert "<h2>Result</h2>" in text
    assert "<h2>Status</h2>" not in text


@pytest.mark.usefixtures("undrawn")
def test_stopping_leaves_a_page_that_does_not_reload(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_run(tmp_path / "runs/a", experiment(), 0.8, finished=False)
    watching = watch_page([tmp_path / "runs"], page)
    next(iter(watching))
    watching.close()  # type: ignore[attr-defined]
    assert '<meta http-equiv="refresh"' not in page.read_text()
    assert "<h2>Status</h2>" in page.read_text()
