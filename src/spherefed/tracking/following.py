"""Follow run directories with a tracker. A tracker reads what a run has written; one that fails never stops the run."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from spherefed.errors import ConfigError, install_extra
from spherefed.runs.directory import read_json
from spherefed.runs.round_log import ROUNDS
from spherefed.tracking import mlflow, tensorboard
from spherefed.tracking.mlflow import MlflowWriter
from spherefed.tracking.tensorboard import TensorBoardWriter
from spherefed.tracking.values import Values, read_new_lines, result_values, round_values

LOGGER = logging.getLogger("spherefed")


class Writer(Protocol):
    """One run in a tracker."""

    def start(self, experiment: Mapping[str, Any]) -> None: ...

    def log(self, values: Values, step: int) -> None: ...

    def finish(self, values: Values, table: str, run: Path) -> None: ...

    def close(self, *, finished: bool) -> None: ...


TRACKERS: dict[str, tuple[Callable[[Path, str], Writer], Callable[[Path, str], None], tuple[str, ...]]] = {
    "tensorboard": (TensorBoardWriter, tensorboard.write_table, ("tensorboard",)),
    "mlflow": (MlflowWriter, mlflow.write_table, ("mlflow", "sqlalchemy", "alembic")),
}
"""Name → how to write a run, how to write the table of several, and what has to be installed."""


@contextmanager
def tracked(kind: str, out: Path) -> Iterator[Callable[[Path], None]]:
    """A function that tells the tracker about the new rounds of a run directory at or below `out`.

    Afterwards, everything that the runs have written is told.
    """
    check_tracker(kind)
    following = _Following(kind, out)
    try:
        yield following.update
    finally:
        following.close()


def check_tracker(kind: str) -> None:
    """Refuse an unknown tracker, and one that is not installed, before a run begins."""
    if kind not in TRACKERS:
        raise ConfigError(f"track must be one of {', '.join(TRACKERS)}, got {kind!r}")
    if missing := [name for name in TRACKERS[kind][2] if find_spec(name) is None]:
        raise ConfigError(f"tracking needs {', '.join(missing)}: {install_extra(kind)}")


class _Following:
    def __init__(self, kind: str, out: Path) -> None:
        self._make, self._write_table, _ = TRACKERS[kind]
        self._kind, self._out = kind, out
        self._runs: dict[Path, _Run] = {}
        self._failed = False

    def update(self, run: Path) -> None:
        self._attempt(lambda: self._update(run))

    def close(self) -> None:
        found = [self._out, *sorted(path.parent for path in self._out.glob("*/*/experiment.json"))]
        runs = [path for path in found if (path / "experiment.json").exists()]
        for run in runs:
            self.update(run)
        if len(runs) > 1:
            self._attempt(lambda: self._write_table(self._out, _table([self._out])))
        for each in self._runs.values():
            self._attempt(each.close)

    def _update(self, run: Path) -> None:
        if run not in self._runs:
            name = run.relative_to(self._out.parent).as_posix() if run.is_relative_to(self._out) else run.name
            self._runs[run] = _Run(run, self._make(run, name))
        self._runs[run].update()

    def _attempt(self, step: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            step()
        except Exception as error:  # whatever a tracker raises, the run goes on
            self._failed = True
            LOGGER.warning("%s failed, and the run goes on without it: %s: %s", self._kind, type(error).__name__, error)


class _Run:
    """How much of one run a tracker has been told."""

    def __init__(self, path: Path, writer: Writer) -> None:
        self._path, self._writer = path, writer
        self._offset = 0
        self._finished = False
        writer.start(read_json(path / "experiment.json"))

    def update(self) -> None:
        lines, self._offset = read_new_lines(self._path / ROUNDS, self._offset)
        for line in lines:
            self._writer.log(round_values(line), int(line["round"]) + 1)
        if not self._finished and (self._path / "result.json").exists():
            values = result_values(read_json(self._path / "result.json"))
            self._writer.finish(values, _table([self._path]), self._path)
            self._finished = True

    def close(self) -> None:
        self._writer.close(finished=self._finished)


def _table(runs: list[Path]) -> str:
    """The table of these runs in Markdown."""
    from spherefed.report import personal, tables
    from spherefed.report.summary import summarize

    if rows := personal.personal_rows(runs):
        return tables.markdown_cells(personal.personal_cells(rows), personal.CAPTION)
    return tables.markdown_table(summarize(runs))
