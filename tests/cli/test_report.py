"""The report command: what it prints, what it writes, and what it leaves alone."""

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from spherefed.cli.report import report
from spherefed.errors import ConfigError
from support.known_runs import FEDAVG_TRAINED, GLOBAL, experiment, write_run
from support.report_runs import write_demo, write_mixed


def call(*arguments: str) -> str:
    result = CliRunner().invoke(report, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_markdown_writes_no_page_unless_asked(folder: Path) -> None:
    write_mixed(folder / "runs")
    printed = call("runs", "--markdown")
    assert printed.count("| method |") == 3, "one table for each kind of run"
    assert "| FedAvg + local FFC |" in printed
    assert not (folder / "report.html").exists()
    call("runs/fine-tune", "--markdown", "--out", "page.html")
    assert (folder / "page.html").exists()


@pytest.mark.usefixtures("undrawn")
def test_the_terminal_counts_rejected_replies(folder: Path) -> None:
    rejected = [{"round": 4, "client": client, "cause": "ClientError: too few [/examples]"} for client in range(2)]
    write_run(folder / "runs" / "a", experiment(), 0.8, rejections=rejected)
    printed = " ".join(call("runs").split())
    assert "note: 2 replies were rejected and not counted (the first: ClientError: too few [/examples])" in printed
    assert "rejected" not in call("runs", "--markdown")


def test_csv_holds_every_round_and_stage(folder: Path) -> None:
    write_demo(folder / "runs")
    lines = list(csv.DictReader(io.StringIO(call("runs", "--csv"))))
    assert not (folder / "report.html").exists()
    assert len(lines) == 10 * (4 + 2)
    fedavg = [line for line in lines if line["run"] == "z-fedavg/2"]
    assert [line["stage"] for line in fedavg] == ["round"] * 4 + ["trained", "calibrated"]
    assert [line["round"] for line in fedavg] == ["1", "2", "3", "4", "4", "4"]
    assert [line[GLOBAL] for line in fedavg[:2]] == [str(FEDAVG_TRAINED[2] / 2), ""]
    assert float(fedavg[4][GLOBAL]) == FEDAVG_TRAINED[2]
    assert [float(line["seconds"]) for line in fedavg[:4]] == [0.5, 1.0, 1.5, 2.0]
    assert [float(line["bytes_up"]) for line in fedavg[:4]] == [200, 400, 600, 800]
    assert float(fedavg[0]["cosine"]) == 0.5


@pytest.mark.slow
def test_figures_and_targets_are_written(folder: Path) -> None:
    write_demo(folder / "runs")
    call("runs/z-fedavg", "--figures", "figures", "--target", "0.7", "--target", "0.99")
    names = {path.name for path in (folder / "figures").iterdir()}
    assert {"final.svg", "final.pdf", "classes0.svg", "spectrum.pdf"} <= names
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "round 3" in text
    assert "not reached" in text


@pytest.mark.slow
def test_json_has_the_rows_of_every_kind_of_run(folder: Path) -> None:
    write_mixed(folder / "runs")
    found = json.loads(call("runs", "--json"))
    assert [row["measure"].split("/")[0] for row in found["rows"]] == [
        "global_model", "personal_model", "personal_model", "global_model",
    ]  # fmt: skip
    assert Path(found["page"]).is_file()


def test_formats_exclude_each_other(folder: Path) -> None:
    with pytest.raises(ConfigError, match="--markdown, --csv, --json and --watch"):
        CliRunner().invoke(report, ["runs", "--csv", "--markdown"], catch_exceptions=False)
