"""What the documents show works: every command is run (shrunken), every Python block is executed, every link exists."""

import doctest
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch

import diagrams
import notebooks
import site_reference
import spherefed
from spherefed.cli import main
from spherefed.experiment import read_experiment, with_settings
from spherefed.runs.runner import run_to_end

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted(DOCS.glob("**/*.md"))]
GENERATED = {
    *(DOCS / "reference" / f"{name}.md" for name in ("fields", "commands", "python", "run-files")),
    *(path.with_suffix(".md") for path in notebooks.FOLDER.glob("*.ipynb")),
}
"""Pages that are written while the site is built."""
ELSEWHERE = {ROOT / "README.md", DOCS / "data.md"}
"""Their Python blocks continue code of the reader: other tests execute them."""
SMALL = ["--set", "rounds=1", "--set", "local.epochs=1"]
SHRINK = dict.fromkeys(("run", "compare", "tune", "personalize"), SMALL)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "sh")], ids=lambda p: p.name)
def test_every_command_of_the_documents_works(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [line for block in blocks(page, "sh") for line in block.splitlines() if line.startswith("spherefed ")]
    assert commands
    for line in commands:
        words = shlex.split(line.replace("--seeds 5", "--seeds 2"), comments=True)
        small = [] if words[1:3] == ["run", "digits-one-shot"] else SHRINK.get(words[1], [])  # it has no round at all
        monkeypatch.setattr(sys, "argv", [*words, *small])
        main()  # an error would end it with SystemExit


def test_the_python_of_the_readme_runs_and_gives_the_pooled_least_squares_head() -> None:
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    for block in blocks(ROOT / "README.md", "python"):
        exec(block, names)  # our own README
    unit = torch.nn.functional.normalize(names["encoder"](names["x"]).double(), dim=1).detach()
    labels = torch.nn.functional.one_hot(names["y"], 10).double()
    pooled = torch.linalg.lstsq(unit, labels).solution.T
    torch.testing.assert_close(names["model"].head.weight.double(), pooled, rtol=0, atol=1e-3)
    assert names["result"].accuracy > 0.5


def test_the_readme_has_at_most_two_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if blocks(p, "python") and p not in ELSEWHERE],
    ids=lambda p: p.relative_to(ROOT).as_posix(),
)
def test_every_python_block_of_a_page_runs_after_those_before_it(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), names)  # our own page


@pytest.mark.slow
def test_the_examples_of_python_names_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    runner = doctest.DocTestRunner()
    for block in site_reference.example_blocks():
        test = doctest.DocTestParser().get_doctest(block, names, site_reference.EXAMPLES.name, None, 0)
        runner.run(test, clear_globs=False)
        names = test.globs
    assert runner.tries > 50
    assert runner.failures == 0


def test_every_public_name_has_a_docstring_and_an_example() -> None:
    examples = site_reference.example_blocks()
    assert [n for n in spherefed.__all__ if not any(site_reference.mentions(b, n) for b in examples)] == []
    documented = {name for names in site_reference.grouped_names().values() for name in names}
    assert documented == set(spherefed.__all__) - {"__version__"}
    assert [name for name in documented if not getattr(spherefed, name).__doc__] == []


def test_a_name_is_mentioned_by_code_and_not_by_its_output() -> None:
    assert site_reference.mentions(">>> sf.run(x)\n1\n", "run")
    assert not site_reference.mentions(">>> sf.runs(x)\n'sf.run'\n", "run")


def test_the_diagrams_are_those_that_the_tool_draws() -> None:
    for name, draw in diagrams.DIAGRAMS.items():
        assert (diagrams.FIGURES / name).read_text(encoding="utf-8") == draw(), "run: python tools/diagrams.py"


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(notebooks.FOLDER.glob("*.ipynb")), ids=lambda path: path.name)
@pytest.mark.filterwarnings("ignore")  # the notebook's own process has none; nbclient's event loop does
def test_the_notebooks_run_and_their_stored_outputs_are_small(path: Path, tmp_path: Path) -> None:
    stored = notebooks.as_markdown(path)
    assert path.stat().st_size < 100_000
    fresh = notebooks.execute(path, tmp_path)  # an error in a cell, such as a failed assertion, is raised
    counted = [len(cell.outputs) for cell in fresh.cells if cell.cell_type == "code"]
    assert stored.count("```text") + stored.count("data:image/png") + stored.count("<table>") == sum(counted)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_a_cell_prints_slowly_is_one_output(tmp_path: Path) -> None:
    slow = nbformat.v4.new_code_cell("import time\nfor i in range(3):\n    print(i, flush=True)\n    time.sleep(0.5)")
    nbformat.write(nbformat.v4.new_notebook(cells=[slow]), tmp_path / "slow.ipynb")
    (cell,) = notebooks.execute(tmp_path / "slow.ipynb", tmp_path).cells
    assert [output.text for output in cell.outputs] == ["0\n1\n2\n"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            found = page.parent / target
            assert found.exists() or found.resolve() in GENERATED, f"{page.name} links to {target}"


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "toml")], ids=lambda p: p.name)
def test_experiments_in_the_documents_are_whole_and_run(page: Path, tmp_path: Path) -> None:
    for number, block in enumerate(blocks(page, "toml")):
        file = tmp_path / f"{number}.toml"
        file.write_text(block, encoding="utf-8")
        experiment = with_settings(read_experiment(file), ["rounds=1", "local.epochs=1"])
        assert run_to_end(experiment, tmp_path / str(number))["rounds"] == 1


def test_no_placeholder_is_left_in_a_document() -> None:
    for page in PAGES:
        assert not re.search(r"^(TABLE|FIGURE)$", page.read_text(encoding="utf-8"), re.MULTILINE), page.name


def test_the_tests_that_the_paper_map_names_exist() -> None:
    named = re.findall(r"`((?:\w+/)*test_\w+)`", (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    assert [name for name in named if not (ROOT / "tests" / f"{name}.py").is_file()] == []
