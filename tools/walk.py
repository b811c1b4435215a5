"""How far a reader has to walk through the code: every function of the package that a command enters, in order.

    python tools/walk.py [--from NAME] [--to NAME] -- spherefed run digits --set rounds=1 --out OUT

Prints the functions file by file, in the order of their first call, and then the number of files, functions and lines
and how often the walk changes from one file to another. `--from` and `--to` name the functions (or Class.method) whose
first call begins and ends the part that is counted; the last one is not counted. Comprehensions and lambdas belong to
the function around them. Other processes are not seen: use the in-process engine. `walk_limits.json` holds walks that
may not become longer, and `tests/test_walk.py` measures them.
"""

import argparse
import ast
import importlib.metadata
import inspect
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src"


@dataclass(frozen=True, slots=True)
class Function:
    """A function that was entered."""

    file: str
    """Its path below src."""
    name: str
    """With its class, as in `Class.method`."""
    num_lines: int


@dataclass(frozen=True, slots=True)
class Walk:
    """The functions that a command entered, each once, in the order of their first call."""

    functions: tuple[Function, ...]

    @property
    def figures(self) -> dict[str, int]:
        """What a reader has to open and how often the place changes; less is better."""
        return {
            "files": len({function.file for function in self.functions}),
            "functions": len(self.functions),
            "lines": sum(function.num_lines for function in self.functions),
            "changes": len(list(groupby(self.functions, key=lambda function: function.file))),
        }


class Recorder:
    """A profile function that notes calls of the package's functions between two of them."""

    def __init__(self, source: Path, first: str | None, last: str | None) -> None:
        self._source, self._first, self._last = f"{source}/", first, last
        self._begun, self._ended = first is None, False
        self.entered: dict[tuple[str, int], str] = {}
        """The file and first line of each function → its name."""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or self._ended or not code.co_filename.startswith(self._source):
            return
        # The body of a class is called too, but has no local variables of its own.
        if code.co_name.startswith("<") or not code.co_flags & inspect.CO_NEWLOCALS:
            return
        names = (code.co_name, code.co_qualname)
        self._begun = self._begun or self._first in names
        self._ended = self._begun and self._last in names
        if self._begun and not self._ended:
            self.entered.setdefault((code.co_filename, code.co_firstlineno), code.co_qualname)


def walk(command: Sequence[str], *, first: str | None = None, last: str | None = None) -> tuple[Walk, int]:
    """Run an installed command in this process and watch it; the walk and the command's exit code."""
    (script,) = importlib.metadata.entry_points(group="console_scripts", name=command[0])
    main, recorder, status = script.load(), Recorder(SOURCE, first, last), 0
    sys.argv = list(command)
    sys.setprofile(recorder)
    try:
        main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.setprofile(None)
    return Walk(tuple(described(recorder.entered))), status


def described(entered: dict[tuple[str, int], str]) -> Iterable[Function]:
    """The functions with their lengths, decorators and docstrings included."""
    lengths = {path: function_lengths(Path(path).read_text(encoding="utf-8")) for path, _ in entered}
    for (path, line), name in entered.items():
        yield Function(Path(path).relative_to(SOURCE).as_posix(), name, lengths[path][line])


def function_lengths(source: str) -> dict[int, int]:
    """The first line of each function, decorators included → its number of lines."""
    functions = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    spans = ((min([n.lineno, *(d.lineno for d in n.decorator_list)]), n.end_lineno) for n in functions)
    return {start: end - start + 1 for start, end in spans if end is not None}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--from", dest="first", metavar="NAME", help="begin at the first call of this function")
    parser.add_argument("--to", dest="last", metavar="NAME", help="end before the first call of this function")
    parser.add_argument("command", nargs="+", help="an installed command and its arguments, behind --")
    given = parser.parse_args()
    walked, status = walk(given.command, first=given.first, last=given.last)
    for file, functions in groupby(walked.functions, key=lambda function: function.file):
        print(f"\n{file}")
        for function in functions:
            print(f"  {function.name} ({function.num_lines})")
    print("\n" + ", ".join(f"{count} {what}" for what, count in walked.figures.items()))
    return status


if __name__ == "__main__":
    sys.exit(main())
