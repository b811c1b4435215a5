"""The sections of a page about how results were made: experiments, runs, environment, rejected replies."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from spherefed.report import captions
from spherefed.report.blocks import Block, Details, Pairs, Section, Table, Text
from spherefed.report.experiment_diff import differing_fields, shared_fields
from spherefed.report.groups import Group
from spherefed.report.reports import Report
from spherefed.report.run_files import Run
from spherefed.report.tables import Cells

MAX_REJECTIONS = 200
"""Rejected replies that the page lists; it also states their total number."""
OF_ONE_RUN = ("seed", "started", "experiment_digest", "run", "sites", "components")
"""Values of the environment that differ from run to run and say nothing about the machine."""


def provenance_sections(report: Report) -> list[Section]:
    """Rejected replies, experiments, and what is needed to run them again."""
    rejected = _rejections(report.runs)
    return [
        *([Section("rejections", "Rejected replies", rejected)] if rejected else []),
        Section("experiments", "Experiments", _experiments(report.groups)),
        Section("reproducing", "Reproducing the runs", _reproducing(report)),
    ]


def _experiments(groups: Sequence[Group]) -> list[Block]:
    blocks: list[Block] = []
    if len(groups) > 1:
        cells = differing_fields(groups)
        every = tuple(range(1, len(cells.columns)))
        blocks.append(Table(cells, captions.DIFFERENCES, title="What differs", text_columns=every))
    summary = "Fields that all experiments share" if len(groups) > 1 else "Every field of the experiment"
    blocks.append(Details(summary, [Pairs(shared_fields(groups))]))
    return blocks


def _reproducing(report: Report) -> list[Block]:
    columns = ("run", "method", "seed", "started", "partition", "weights, SHA-256", "calibration")
    lines = tuple(
        (
            run.name,
            group.name,
            str(run.seed),
            str(run.environment.get("started", "–")),
            run.partition.digest[:12] + ("…" if len(run.partition.digest) > 12 else ""),
            run.weights_sha256[:12] + ("…" if len(run.weights_sha256) > 12 else ""),
            _calibration_text(run.calibration),
        )
        for group in report.groups
        for run in group.runs
    )
    table = Table(Cells(columns=columns, lines=lines), text_columns=(1, 3, 4, 5, 6))
    runs = [Details(f"All {len(lines)} runs", [table])] if len(lines) > 6 else [table]
    return [Text(captions.REPRODUCING), *runs, *_environment(report.runs)]


def _environment(runs: Sequence[Run]) -> list[Block]:
    """One table; a value that differs between runs lists all values."""
    values: dict[str, dict[str, int]] = {}
    for run in runs:
        for name, value in run.environment.items():
            if name not in OF_ONE_RUN:
                text = value if isinstance(value, str) else "–" if value is None else json.dumps(value)
                found = values.setdefault(name, {})
                found[text] = found.get(text, 0) + 1
    pairs = []
    for name, found in values.items():
        only = len(found) == 1 and sum(found.values()) == len(runs)
        shown = [text if only else f"{text} ({number} of {len(runs)} runs)" for text, number in found.items()]
        pairs.append((name, "; ".join(shown)))
    return [Details("Environment", [Pairs(pairs)])] if pairs else []


def _rejections(runs: Sequence[Run]) -> list[Block]:
    found = [(run, rejection) for run in runs for rejection in run.rejections]
    if not found:
        return []
    first = f" The table shows the first {MAX_REJECTIONS}." if len(found) > MAX_REJECTIONS else ""
    lines = tuple(
        (run.name, _round_text(run, each.round), run.sites.get(each.client, str(each.client)), each.cause)
        for run, each in found[:MAX_REJECTIONS]
    )
    columns = ("run", "round", "client", "cause")
    table = Table(Cells(columns=columns, lines=lines), text_columns=(3,))
    return [Text(f"Replies that were rejected and not counted: {len(found)}.{first}"), table]


def _round_text(run: Run, index: int) -> str:
    return str(index + 1) if index < run.rounds else "after training"


def _calibration_text(calibration: Mapping[str, Any] | None) -> str:
    if calibration is None:
        return "–"
    plain = {name: value for name, value in calibration.items() if isinstance(value, str | int | float)}
    return ", ".join(
        f"{name} {value:.3g}" if type(value) is float else f"{name} {value}" for name, value in plain.items()
    )
