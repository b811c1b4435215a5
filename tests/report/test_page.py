"""The page: one file that loads nothing, with every table and panel, and how the runs were made."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from spherefed.errors import RunError
from spherefed.report import write_page
from spherefed.report.experiment_diff import differing_fields, shared_fields
from spherefed.report.page import render_page
from spherefed.report.reports import read_report
from spherefed.report.tables import cells
from spherefed.report.wording import overview
from support.known_runs import FFC, experiment, write_run


class Walk(HTMLParser):
    """Checks that tags balance; collects addresses that would be loaded, tags and text."""

    VOID = frozenset({"meta", "br", "hr", "img", "link", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster"):
                self.loads.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def walk(html: str) -> Walk:
    found = Walk()
    found.feed(html)
    found.close()
    assert found.open == []
    return found


def test_the_page_is_whole_and_loads_nothing(demo_page: str) -> None:
    found = walk(demo_page)
    assert all(load.startswith(("#", "data:")) for load in found.loads)
    assert not {"link", "iframe", "object"} & set(found.tags)
    assert "@import" not in demo_page
    assert "@font-face" not in demo_page
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", demo_page))
    addresses = set(re.findall(r'https?://[^"\s<]*', demo_page))
    assert addresses == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert len(found.ids) == len(set(found.ids))
    assert found.tags.count("svg") == 12
    assert len(demo_page) < 600_000


def test_the_only_script_is_the_one_that_the_security_policy_names(demo_page: str) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", demo_page, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in demo_page
    assert "default-src 'none'" in demo_page
    assert not re.search(r"<[^>]+ on[a-z]+=", demo_page), "no handlers in attributes"


def test_the_page_shows_the_table_and_how_the_runs_were_made(demo: Path, demo_page: str) -> None:
    text = "".join(walk(demo_page).text).replace("\u00a0", " ")
    (summary,) = read_report([demo]).summaries
    for line in cells(summary).lines:
        assert all(cell in text for cell in line)
    for said in ("digits", "Dirichlet α = 0.1", "[128, 64]", "partition-of", f"{0:012x}…", "rank 64", "3.11.7"):
        assert said in text, said
    assert "Rejected replies" not in text
    assert "1 → 0" in text, "the most confused pair of FedAvg"
    assert text.count("3.11.7") == 1, "the environment is stated once"


def test_every_panel_has_a_caption_and_every_section_a_link(demo_page: str) -> None:
    assert demo_page.count("<figure>") == demo_page.count("<figcaption>") == 12
    sections = re.findall(r'<section id="([a-z]+)">', demo_page)
    assert sections == re.findall(r'<li><a href="#([a-z]+)">', demo_page)
    assert sections == [
        "result", "training", "clients", "classes", "calibration", "traffic", "experiments", "reproducing",
    ]  # fmt: skip


@pytest.mark.slow
def test_rows_are_marked_best_and_a_single_seed_has_no_interval(demo_page: str, tmp_path: Path) -> None:
    assert 'class="best"><th scope="row">SphereFed <' in demo_page
    write_run(tmp_path / "a", experiment(calibration=FFC), 0.8, 0.8)
    hostile = '</title><script>alert(1)</script>"&$x$'
    lines = [{"round": 3, "client": 2, "cause": hostile}, {"round": 4, "client": 1, "cause": "too few"}]
    write_run(tmp_path / "<b>", experiment(name=hostile), 0.7, rejections=lines)
    html = render_page(read_report([tmp_path]))
    found = walk(html)
    text = "".join(found.text)
    assert 'class="best"' not in html, "one seed crowns no winner"
    assert "One seed gives no confidence interval" in text
    assert "± –" not in text
    assert "−0.00" not in text
    # A hostile name stays text.
    assert found.tags.count("script") == 1
    assert "b" not in found.tags
    assert hostile in text
    # Rejected replies.
    assert "<h2>Rejected replies</h2>" in html
    assert "after training" in text


def test_experiments_are_compared_by_their_fields(demo: Path) -> None:
    groups = read_report([demo]).groups
    differing = {line[0]: line[1:] for line in differing_fields(groups).lines}
    assert differing == {
        "model.head.kind": ("learned", "orthonormal"),
        "model.normalize": ("false", "true"),
        "loss.kind": ("ce", "mse"),
        "loss.scale": ("1.0", "–"),
    }
    shared = dict(shared_fields(groups))
    assert shared["local.lr"] == "0.1"
    assert not shared.keys() & differing.keys()


def test_a_missing_component_has_the_kind_none(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment(), 0.8)
    write_run(tmp_path / "b", experiment(calibration=FFC), 0.8, 0.9)
    lines = differing_fields(read_report([tmp_path]).groups).lines
    assert lines == (("calibration.kind", "none", "ffc"), ("calibration.ridge", "–", "0.0"))


def test_a_page_that_cannot_be_made_leaves_the_old_one(tmp_path: Path) -> None:
    write_run(tmp_path / "runs/a", experiment(), 0.8)
    out = write_page([tmp_path / "runs"], tmp_path / "new/page.html")
    before = out.read_bytes()
    assert [file.name for file in out.parent.iterdir()] == ["page.html"], "no temporary file is left"
    assert str(tmp_path) not in before.decode()
    assert write_page([tmp_path / "runs"], out).read_bytes() == before
    (tmp_path / "runs/a/result.json").write_text("{")
    with pytest.raises(RunError):
        write_page([tmp_path / "runs"], out)
    assert out.read_bytes() == before


def test_the_overview_says_what_no_rounds_are(tmp_path: Path) -> None:
    write_run(tmp_path / "trained", experiment(), 0.8)
    write_run(tmp_path / "one-shot", experiment(rounds=0, calibration=FFC), 0.8, 0.9, changes={"rounds": 0})
    assert dict(overview(read_report([tmp_path]).groups))["rounds"] == "4, 0 (one-shot)"
