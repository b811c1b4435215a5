"""Accuracy of each class and the most confused pairs, all seeds together."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spherefed.report.diagnostics import Matrix
from spherefed.report.groups import Group
from spherefed.report.run_files import Run
from spherefed.report.summary import GLOBAL_TEST, Row
from spherefed.report.tables import Cells

MAX_PAIRS = 10


@dataclass(frozen=True, eq=False, slots=True)
class ClassResult:
    """A method at one stage."""

    label: str
    classes: tuple[str, ...]
    accuracy: Matrix
    """(C,): the share of the test examples of each class that are classified correctly; NaN without examples."""
    counts: Matrix | None
    """(C, C): test examples by true and predicted class; None if only the accuracy was recorded."""


def class_results(groups: Sequence[Group], rows: Sequence[Row], measure: str) -> list[ClassResult]:
    """One per row whose runs have recorded it."""
    found = []
    for row in rows:
        runs = [run for run in groups[row.group].runs if row.stage in run.stages]
        result = _from_counts(row, runs) if measure == GLOBAL_TEST else None
        result = result or _from_recall(row, runs, measure)
        if result is not None:
            found.append(result)
    return found


def confused_pairs(result: ClassResult) -> Cells:
    """The most frequent errors: true class, predicted class, how often, and how much of the true class that is."""
    assert result.counts is not None
    errors = result.counts.copy()
    np.fill_diagonal(errors, 0)
    totals = np.maximum(result.counts.sum(axis=1), 1)
    order = np.argsort(-errors, axis=None, kind="stable")[:MAX_PAIRS]
    pairs = [divmod(int(index), errors.shape[1]) for index in order]
    lines = tuple(
        (
            f"{result.classes[true]} → {result.classes[said]}",
            str(int(errors[true, said])),
            f"{100 * errors[true, said] / totals[true]:.1f} %",
        )
        for true, said in pairs
        if errors[true, said]
    )
    return Cells(columns=("true class → prediction", "examples", "of the true class"), lines=lines)


def _from_counts(row: Row, runs: Sequence[Run]) -> ClassResult | None:
    known = [run.diagnostics.confusion[row.stage] for run in runs if row.stage in run.diagnostics.confusion]
    if not known or len({matrix.shape for matrix in known}) > 1:
        return None
    counts = np.sum(known, axis=0)
    totals = counts.sum(axis=1).astype(float)
    totals[totals == 0] = np.nan
    return ClassResult(row.label, _names(runs, len(counts)), np.asarray(np.diag(counts) / totals), counts)


def _from_recall(row: Row, runs: Sequence[Run], measure: str) -> ClassResult | None:
    """The mean over seeds of the recall of each class; that of clients is pooled over their examples."""
    name = measure.replace("by_clients", "by_samples")
    measures = [run.stages[row.stage].measures.get(name, {}) for run in runs]
    known = [np.array(found["recall"], dtype=float) for found in measures if "recall" in found]
    if not known or len({len(recall) for recall in known}) > 1:
        return None
    values = np.array(known)
    counted = np.isfinite(values).sum(axis=0)
    sums = np.nansum(values, axis=0)
    accuracy = np.divide(sums, counted, out=np.full(len(sums), np.nan), where=counted > 0)
    return ClassResult(row.label, _names(runs, len(accuracy)), accuracy, None)


def _names(runs: Sequence[Run], num_classes: int) -> tuple[str, ...]:
    """The names of the classes as a run recorded them; their numbers if it recorded none."""
    recorded = (run.classes for run in runs if len(run.classes) == num_classes)
    return next(recorded, tuple(map(str, range(num_classes))))
