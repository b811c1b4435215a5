"""`spherefed reproduce` at tiny scale: every item, its pages from JSON alone, and a restart after a kill."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from spherefed.cli import main
from spherefed.experiment import experiment_from_mapping
from spherefed.reproduce.catalog import ITEMS, find_items, find_scale
from spherefed.reproduce.chart import item_figure
from spherefed.reproduce.headline import write_headline
from spherefed.reproduce.page import item_page, mean_text
from spherefed.reproduce.rates import rate_search
from spherefed.reproduce.store import Store
from spherefed.reproduce.writing import write_claims, write_page
from spherefed.runs.runner import Engine

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
COMMITTED = sorted((DOCS / "results").glob("*/*.json")) if (DOCS / "results").exists() else []
PAGES = [path for path in COMMITTED if not path.name.startswith("tuning")]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["spherefed", "reproduce", *arguments])
    main()


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("all")
    with pytest.MonkeyPatch.context() as monkeypatch:
        call(monkeypatch, "all", "--scale", "tiny", "--out", str(out))
    return out / "tiny"


@pytest.mark.parametrize("name", ITEMS)
def test_every_item_runs_at_tiny_scale(name: str, everything: Path) -> None:
    found = json.loads((everything / f"{name}.json").read_text())
    page = (everything / f"{name}.md").read_text()
    assert found["claim"] in page
    if "computed" in found:
        assert found["computed"]["verdicts"]
        return
    ran = [cell for cell in found["cells"] if cell["digest"] is not None]
    assert ran
    assert all(cell["ours"] is not None or cell["failed"] for cell in ran)
    assert all("not run" in line for line in page.splitlines() if "| TinyImageNet |" in line)
    for cell in ran:
        assert cell["digest"] in page
    records = {path.stem for path in (everything / "experiments").glob("*.json")}
    assert {cell["digest"] for cell in ran} <= records


def test_pages_follow_from_json_alone(everything: Path) -> None:
    for file in everything.glob("*.json"):
        before = {
            path: path.read_bytes() for path in (file.with_suffix(".md"), file.with_suffix(".svg")) if path.exists()
        }
        write_page(file)
        assert before == {path: path.read_bytes() for path in before}


def test_a_second_call_trains_nothing(everything: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {path: path.stat().st_mtime_ns for path in (everything / "runs").rglob("*")}
    before = (everything / "table4.json").read_bytes()
    call(monkeypatch, "table4", "--scale", "tiny", "--out", str(everything.parent))
    assert runs == {path: path.stat().st_mtime_ns for path in (everything / "runs").rglob("*")}
    assert (everything / "table4.json").read_bytes() == before


@pytest.mark.parametrize("file", PAGES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_committed_pages_are_those_of_the_committed_json(file: Path) -> None:
    found = json.loads(file.read_text())
    assert item_page(found) == file.with_suffix(".md").read_text()
    drawn = item_figure(found)
    assert drawn is None or drawn == file.with_suffix(".svg").read_bytes()


def test_a_claim_that_does_not_hold_is_reported_with_a_likely_cause() -> None:
    failed = []
    for file in PAGES:
        found = json.loads(file.read_text())
        if any(claim["verdict"] == "does not hold" for claim in found.get("claims", [])):
            failed.append(file)
            assert found["likely_cause"], f"{file.parent.name}/{file.stem}: add its cause to reproduce/causes.py"
            assert found["likely_cause"] in file.with_suffix(".md").read_text()
    assert failed


def test_the_readme_and_the_explanation_quote_the_headline() -> None:
    headline = (DOCS / "results" / "headline.md").read_text(encoding="utf-8")
    rows = [
        line for line in headline.partition("α = 0.1,")[2].split("\n\n")[1].splitlines() if line.startswith("| FedAvg")
    ]
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert len(rows) > 4
    assert [row for row in rows if row not in readme] == []
    longer = headline.partition("Beyond the paper: 30 rounds")[2].split("\n\n")[1].splitlines()
    assert len(longer) > 6
    assert [row for row in longer if row not in readme] == []
    when = (DOCS / "explanation" / "when.md").read_text(encoding="utf-8")
    for row in rows:
        if row.startswith(("| FedAvg + FFC |", "| FedAvg + SphereFed")):
            assert row.split("|")[3].strip() in when


@pytest.mark.parametrize("page", ["README.md", "docs/explanation/when.md"])
def test_numbers_with_an_interval_are_those_of_the_results(page: str) -> None:
    text = (DOCS.parent / page).read_text(encoding="utf-8").replace("\n", " ")
    quoted = re.findall(r"[+-]?\d+\.\d\d ± \d+\.\d\d", text)
    items = (*(f"table{number}" for number in (2, 3, 4, 5, 6, 8, 9, 10)), "fig3", "regimes", "rounds")
    results = [json.loads((DOCS / "results" / "laptop" / f"{item}.json").read_text()) for item in items]
    cells = [cell for result in results for cell in result["cells"]]
    found = [cell[key] for cell in cells for key in ("ours", "difference") if cell[key] is not None]
    found += [claim["ours"] for result in results for claim in result["claims"] if claim["ours"] is not None]
    known = {mean_text(interval).lstrip("+-") for interval in found}
    assert len(quoted) > 8
    assert [number for number in quoted if number.lstrip("+-") not in known] == []


def test_the_committed_overviews_are_those_of_the_committed_json(tmp_path: Path) -> None:
    for file in PAGES:
        folder = tmp_path / "results" / file.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file.name).write_bytes(file.read_bytes())
    write_claims(tmp_path / "results", tmp_path / "claims.md", ITEMS)
    write_headline(tmp_path / "results")
    written = [path for path in tmp_path.rglob("*") if path.suffix in (".md", ".svg")]
    assert {"claims.md", "README.md"} <= {path.name for path in written}
    for path in written:
        assert path.read_text() == (DOCS / path.relative_to(tmp_path)).read_text(), path.name


def test_every_number_of_the_committed_results_has_the_digest_of_its_experiment() -> None:
    for file in PAGES:
        for cell in json.loads(file.read_text()).get("cells", []):
            if cell["ours"] is None:
                continue
            stored = json.loads((file.parent / "experiments" / f"{cell['digest']}.json").read_text())
            assert stored["digest"].startswith(cell["digest"])
            assert experiment_from_mapping(stored["experiment"]).digest() == stored["digest"]
            assert set(cell["values"]) <= set(stored["seeds"])


@pytest.mark.parametrize("name", [name for name in ITEMS if name not in ("table1", "fig5")])
def test_an_item_run_from_scratch_gives_the_committed_results(name: str, everything: Path) -> None:
    """On the same partitions; to the bit on the machine that they name, and within 5 points of accuracy elsewhere."""
    (item,) = find_items(name, find_scale("tiny"))
    ours, committed = Store(everything / "experiments"), Store(DOCS / "results" / "tiny" / "experiments")
    for experiment in item.experiments():
        found, stored = ours.record(experiment, 0), committed.record(experiment, 0)
        assert found is not None
        if stored is None:
            pytest.fail("the committed results are of another version of the numerics: run them again")
        assert found["partition"] == stored["partition"]
        if (found["machine"], found["torch"]) == (stored["machine"], stored["torch"]):
            assert numbers_of(found) == numbers_of(stored)
        for stage, accuracy in found["accuracy"].items():
            assert accuracy == pytest.approx(stored["accuracy"][stage], abs=0.05)
        assert found.get("local_only") == pytest.approx(stored.get("local_only"), abs=0.05)


def numbers_of(record: dict[str, Any]) -> dict[str, Any]:
    """A record without times and without the description of the calibration, which other versions may extend."""
    return {name: value for name, value in record.items() if name not in ("seconds", "head_seconds", "calibration")}


def without_times(file: Path) -> dict[str, Any]:
    return {**json.loads(file.read_text()), "seconds": None}


def test_killed_at_a_random_moment_and_restarted_an_item_gives_the_same_json(
    everything: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["table3", "--scale", "tiny", "--out", str(tmp_path), "--jobs", "2"]
    process = subprocess.Popen([sys.executable, "-m", "spherefed.cli", "reproduce", *arguments])
    runs = tmp_path / "tiny" / "runs"
    while process.poll() is None and not list(runs.glob("*/rounds.jsonl")):
        time.sleep(0.05)
    time.sleep(random.random())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(1)  # its processes notice at their next message
    call(monkeypatch, *arguments)
    assert without_times(tmp_path / "tiny" / "table3.json") == without_times(everything / "table3.json")


def test_grids_grow_until_the_best_rate_lies_inside_and_stay_equally_large(tmp_path: Path) -> None:
    search = rate_search("tuning", find_scale("tiny"), 1, Store(tmp_path / "results"))
    rounds = list(search.run(tmp_path / "runs", engine=Engine()))
    table = search.table()["methods"]
    assert set(table) == {"fedavg", "fedavg+spherefed", "fedavg+babu"}
    assert len({len(entry["tried"]) for entry in table.values()}) == 1
    for entry in table.values():
        scores = {each["local.lr"]: each[entry["judged_by"]] for each in entry["tried"]}
        best = entry["chosen"]["local.lr"]
        assert scores[best] == max(scores.values())
        assert min(scores) < best < max(scores)
    assert rounds
    assert list(search.run(tmp_path / "other-runs", engine=Engine())) == []


def test_the_list_shows_every_item(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("spherefed.reproduce.duration._seconds_per_image", lambda *_: 1e-3)
    call(monkeypatch, "--list")
    said = capsys.readouterr().out
    assert all(name in said for name in ITEMS)


@pytest.mark.parametrize("option", ["--no-training", "--rows=FedAvg", "--columns=IID", "--claims=claims.md"])
def test_a_search_refuses_the_options_of_items(option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as stopped:
        call(monkeypatch, "tuning", option, "--out", str(tmp_path / "out"))
    assert stopped.value.code == 2
    assert not (tmp_path / "out").exists()


def test_the_page_of_claims_may_be_in_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "new" / "claims.md"
    call(monkeypatch, "table1", "--out", str(tmp_path / "out"), "--claims", str(page))
    assert "SphereFed: 7 MB" in page.read_text(encoding="utf-8")


def test_an_item_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as stopped:
        call(monkeypatch)
    assert stopped.value.code == 2
