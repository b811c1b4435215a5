"""The tool that measures how far a reader has to walk, and the walks that may not become longer."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import walk

ROOT = Path(__file__).parents[1]
LIMITS: dict[str, dict[str, Any]] = json.loads((ROOT / "tools" / "walk_limits.json").read_text(encoding="utf-8"))
"""Whoever shortens a walk lowers its figures in this file."""


@pytest.mark.slow
@pytest.mark.parametrize("name", LIMITS)
def test_a_walk_is_no_longer_than_its_figures_say(name: str, tmp_path: Path) -> None:
    """In a process of its own: what this one has cached would not be entered again."""
    limit = LIMITS[name]
    ends = [f"--{end}={limit[end]}" for end in ("from", "to") if limit[end]]
    command = [sys.executable, ROOT / "tools" / "walk.py", *ends, "--", *limit["command"].split(), "--out", "run"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    found = {what: int(count) for count, what in re.findall(r"(\d+) (\w+)", ended.stdout.splitlines()[-1])}
    assert found["functions"] > 10, ended.stdout  # that is, --from was met
    assert not limit["to"] or f"  {limit['to']} (" not in ended.stdout
    too_long = {what: found[what] for what in ("files", "lines", "changes") if found[what] > limit[what]}
    assert not too_long, f"{name} takes {too_long}, at most {limit} is allowed: see `python tools/walk.py --help`"


SOURCE = """
import functools

class Clerk:
    @functools.cached_property
    def name(self):
        return [letter for letter in "ab"]

def begin():
    return Clerk().name

def twice():
    return begin(), begin()

def end():
    return (lambda: twice())()
"""


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (None, None, {"end": 2, "twice": 2, "begin": 2, "Clerk.name": 3}),
        ("begin", None, {"begin": 2, "Clerk.name": 3}),
        ("Clerk.name", None, {"Clerk.name": 3, "begin": 2}),  # called a second time
        (None, "begin", {"end": 2, "twice": 2}),
        ("twice", "name", {"twice": 2, "begin": 2}),
        ("nothing", None, {}),
    ],
)
def test_functions_are_noted_once_between_the_two_ends(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: str | None,
    last: str | None,
    expected: dict[str, int],
) -> None:
    (tmp_path / "clerk.py").write_text(SOURCE)
    monkeypatch.setattr(walk, "SOURCE", tmp_path)
    recorder = walk.Recorder(tmp_path, first, last)
    space: dict[str, Any] = {}
    exec(compile(SOURCE, str(tmp_path / "clerk.py"), "exec"), space)
    sys.setprofile(recorder)
    space["end"]()
    sys.setprofile(None)
    found = list(walk.described(recorder.entered))
    assert {function.name: function.num_lines for function in found} == expected
    assert len(found) == len(expected)


def test_figures_count_files_lines_and_changes() -> None:
    functions = [walk.Function(file, name, 10) for file, name in [("a", "f"), ("a", "g"), ("b", "h"), ("a", "i")]]
    assert walk.Walk(tuple(functions)).figures == {"files": 2, "functions": 4, "lines": 40, "changes": 3}
    assert walk.Walk(()).figures == {"files": 0, "functions": 0, "lines": 0, "changes": 0}
