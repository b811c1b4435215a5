"""What the documents show works: every command is run (shrunken), every Python block is executed, every link exists."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

from spherefed.cli import main
from spherefed.experiment import changed, read
from spherefed.runner import run_to_end

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
SMALL = ["--set", "rounds=1", "--set", "local.epochs=1"]
SHRINK = dict.fromkeys(("run", "compare", "tune", "personalize"), SMALL)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "sh")], ids=lambda p: p.name)
def test_every_command_of_the_documents_works(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [line for block in blocks(page, "sh") for line in block.splitlines() if line.startswith("spherefed ")]
    assert commands
    for line in commands:
        words = shlex.split(line.replace("--seeds 5", "--seeds 2"), comments=True)
        monkeypatch.setattr(sys, "argv", [*words, *SHRINK.get(words[1], [])])
        main()  # an error would end it with SystemExit


def test_the_library_use_of_the_readme_gives_the_pooled_least_squares_head() -> None:
    torch.manual_seed(0)
    encoder = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.Tanh())
    x, y = torch.randn(300, 20), torch.randint(10, (300,))
    clients = [[(x[:10], y[:10])], [(x[10:200], y[10:200])], [(x[200:], y[200:])]]
    names = {"encoder": encoder, "x": x, "y": y, "clients": clients}
    for block in blocks(ROOT / "README.md", "python"):
        exec(block, names)  # our own README
    unit = torch.nn.functional.normalize(encoder(x).double(), dim=1).detach()
    pooled = torch.linalg.lstsq(unit, torch.nn.functional.one_hot(y, 10).double()).solution.T
    model = names["model"]
    assert isinstance(model, torch.nn.Module)
    torch.testing.assert_close(model.head.weight.double(), pooled, rtol=0, atol=1e-3)  # type: ignore[union-attr]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "toml")], ids=lambda p: p.name)
def test_experiments_in_the_documents_are_whole_and_run(page: Path, tmp_path: Path) -> None:
    for number, block in enumerate(blocks(page, "toml")):
        file = tmp_path / f"{number}.toml"
        file.write_text(block, encoding="utf-8")
        experiment = changed(read(file), ["rounds=1", "local.epochs=1"])
        assert run_to_end(experiment, tmp_path / str(number))["rounds"] == 1


def test_no_placeholder_is_left_in_a_document() -> None:
    for page in PAGES:
        assert not re.search(r"^(TABLE|FIGURE)$", page.read_text(encoding="utf-8"), re.MULTILINE), page.name
