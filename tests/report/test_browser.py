"""The page in a real browser: Chromium, driven by playwright-core, checked by axe-core.

`npm install --prefix tests/browser` installs both; `apt-get install chromium` the browser.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spherefed.report.page import render_page
from spherefed.report.reports import read_report
from support.report_runs import write_demo, write_mixed

TOOLS = Path(__file__).parents[1] / "browser"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NODE = shutil.which("node")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (CHROMIUM and NODE and (TOOLS / "node_modules").is_dir()),
        reason="needs chromium, node and `npm install --prefix tests/browser`",
    ),
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, write in (("demo", write_demo), ("mixed", write_mixed)):
        found[name] = folder / f"{name}.html"
        found[name].write_text(render_page(read_report([write(folder / name)])), encoding="utf-8")
    return found


def inspect(page: Path, width: int, scheme: str) -> dict[str, Any]:
    assert NODE is not None
    assert CHROMIUM is not None
    command = [NODE, str(TOOLS / "inspect_page.mjs"), CHROMIUM, str(page), str(width), scheme]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", ["demo", "mixed"])
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (1400, "dark"), (400, "light"), (400, "dark")])
def test_the_page_works_in_a_browser(pages: dict[str, Path], name: str, width: int, scheme: str) -> None:
    found = inspect(pages[name], width, scheme)
    assert found["errors"] == []
    assert found["requests"] == [found["address"]], "no request leaves the page"
    assert found["layout"]["overflow"] <= 0, "only tables and figures scroll sideways"
    assert all(wide > 250 for wide in found["layout"]["figures"] if wide)
    assert found["layout"]["smallest"] >= 8, "text of figures is readable"
    dark = sum(map(int, found["layout"]["background"].strip("rgb()").split(","))) < 384
    assert dark == (scheme == "dark")
    ink = sum(map(int, found["layout"]["ink"].strip("rgb()").split(",")))
    assert (ink > 384) == dark, "figures follow the theme"
    assert found["hover"]["tip"] == found["hover"]["value"]
    assert found["unreached"] == [], "every figure, table and link can be reached with the keyboard"
    first, second = found["keys"]
    assert first
    assert second
    assert first != second, "arrow keys go through the values of a figure"
    serious = [each for each in found["violations"] if each["impact"] in ("serious", "critical")]
    assert serious == []
    assert found["withoutScripts"]["sections"] >= 6
    assert found["withoutScripts"]["titles"] > 50


def test_the_demo_is_small_and_opens_quickly(pages: dict[str, Path]) -> None:
    assert pages["demo"].stat().st_size < 600_000
    # Seconds of the processor: those of the clock depend on what else the machine does.
    assert 0 < inspect(pages["demo"], 1400, "light")["processor"] < 1


@pytest.fixture
def processes() -> Iterator[list["subprocess.Popen[str]"]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_a_watched_page_follows_a_real_run(tmp_path: Path, processes: list["subprocess.Popen[str]"]) -> None:
    out, page = tmp_path / "run", tmp_path / "page.html"
    # Rounds of about half a second, so that several pages fall into the run.
    sizes = ["--set", "local.epochs=60", "--set", "rounds=12", "--set", "stack=0"]
    command = [sys.executable, "-m", "spherefed", "run", "digits", *sizes, "--out", str(out)]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
    processes.append(run)
    command = [sys.executable, "-m", "spherefed", "report", str(out), "--watch", "--every", "1", "--out", str(page)]
    watch = subprocess.Popen(
        [*command, "--grace", "2"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
    )
    processes.append(watch)
    while not page.exists():
        assert watch.poll() is None
        assert run.poll() in (None, 0)
        time.sleep(0.1)
    assert NODE is not None
    assert CHROMIUM is not None
    command = [NODE, str(TOOLS / "watch_page.mjs"), CHROMIUM, str(page), "500"]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=560, check=False)
    assert seen.returncode == 0, seen.stderr
    states = [json.loads(line) for line in seen.stdout.splitlines()]
    assert run.wait(timeout=200) == 0
    assert watch.wait(timeout=200) == 0
    last = states[-1]
    assert last["errors"] == []
    assert last["loads"] > 2, "the page reloaded itself"
    assert not last["reloads"], "the last page is final"
    assert last["rows"] > 0
    going = [state for state in states if state["bars"]]
    assert going, "some page was read while the run went on"
    assert [state["bars"][0] for state in going] == sorted(state["bars"][0] for state in going)
    assert any("running" in state["status"] and "of 12" in state["status"] for state in going)
    assert any(state["curves"] for state in going), "curves of a run that goes on"
