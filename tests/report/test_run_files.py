"""Run directories as reports read them: each counts once, and damaged or missing files are refused by name."""

import re
from pathlib import Path

import pytest

from spherefed.errors import RunError
from spherefed.report import summarize
from spherefed.report.page import render_page
from spherefed.report.reports import read_report
from support.known_runs import experiment, write_run


def test_a_run_can_be_given_itself_and_counts_once(demo: Path) -> None:
    one = summarize([demo / "z-fedavg/3"])
    assert one.rows[0].seeds == (3,)
    assert summarize([demo, demo / "z-fedavg/3", demo]).rows == summarize([demo]).rows


@pytest.mark.usefixtures("undrawn")
def test_an_unfinished_run_is_skipped_with_a_note(demo: Path) -> None:
    (demo / "z-fedavg/4/result.json").unlink()
    summary = summarize([demo])
    assert summary.rows[0].seeds == (0, 1, 2, 3)
    assert "z-fedavg/4 is not finished and was skipped." in summary.notes
    assert "z-fedavg/4 is not finished and was skipped." in render_page(read_report([demo]))


def test_an_unfinished_run_is_read_as_far_as_it_got(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment(), 0.8, finished=False)
    with pytest.raises(RunError, match="--watch"):
        read_report([tmp_path])
    (run,) = read_report([tmp_path], unfinished=True).runs
    assert not run.finished
    assert [line.index for line in run.lines] == [0, 1]
    (tmp_path / "a/rounds.jsonl").unlink()
    (run,) = read_report([tmp_path], unfinished=True).runs
    assert run.lines == (), "a run that has just begun has no file of rounds"


def test_nothing_but_unfinished_runs_is_refused(demo: Path) -> None:
    (demo / "z-fedavg/4/result.json").unlink()
    with pytest.raises(RunError, match="not finished"):
        summarize([demo / "z-fedavg/4"])


def test_no_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run found"):
        summarize([tmp_path])
    with pytest.raises(RunError, match="not a directory"):
        summarize([tmp_path / "missing"])
    with pytest.raises(RunError, match="no run found"):
        summarize([])


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("result.json", '{"rounds": 4'),
        ("result.json", '{"rounds": 4}'),
        ("result.json", "[]"),
        ("experiment.json", "{}"),
        ("experiment.json", "not json"),
        ("environment.json", "3"),
        ("rounds.jsonl", '{"round": 0, "accu\n{"round": 1, "accuracy": {}}\n'),
        ("rounds.jsonl", '{"accuracy": {}}\n'),
        ("rejections.jsonl", '{"round": 0}\n'),
        ("partition.safetensors", "garbage"),
    ],
)
def test_damaged_files_are_refused_by_name(demo: Path, file: str, text: str) -> None:
    (demo / "z-fedavg/1" / file).write_text(text)
    with pytest.raises(RunError, match=re.escape(str(demo / "z-fedavg/1" / file)) + ".*damaged"):
        summarize([demo])


@pytest.mark.parametrize("file", ["environment.json", "rounds.jsonl", "partition.safetensors"])
def test_missing_files_are_refused_by_name(demo: Path, file: str) -> None:
    (demo / "z-fedavg/1" / file).unlink()
    with pytest.raises(RunError, match=re.escape(file) + " is missing"):
        summarize([demo])


def test_a_last_line_cut_short_is_ignored(demo: Path) -> None:
    before = summarize([demo])
    with (demo / "z-fedavg/1/rounds.jsonl").open("ab") as file:
        file.write('{"round": 4, "cause": "é'.encode()[:-1])
    assert summarize([demo]) == before
