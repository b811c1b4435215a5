"""Sentences and short descriptions about experiments and results."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from spherefed.report.clients import site_note
from spherefed.report.groups import Group
from spherefed.report.method_names import kind_of
from spherefed.report.reports import Report
from spherefed.report.summary import MEASURES, Row, leader, paired_difference
from spherefed.report.tables import percent, points

ONE_SHOT = "0 (one-shot)"
"""In place of the number of rounds, if a head is solved without training."""


def report_title(report: Report) -> str:
    """The names of the experiments."""
    return ", ".join(distinct(str(group.experiment.get("name", "experiment")) for group in report.groups))


def overview(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """Values that the experiments share; if they differ, all distinct values."""

    def values(read: Callable[[Mapping[str, Any]], Any]) -> str:
        found = distinct(str(read(group.experiment)) for group in groups)
        return ", ".join(value for value in found if value != "–") or "–"

    seeds = sorted({run.seed for group in groups for run in group.runs})
    num_runs = sum(len(group.runs) for group in groups)
    return [
        ("data", values(lambda plain: field_of(plain, "data", "name"))),
        ("partition", values(partition_name)),
        ("clients", ", ".join(distinct(str(run.partition.num_clients) for g in groups for run in g.runs))),
        ("rounds", ", ".join(distinct(str(run.rounds or ONE_SHOT) for group in groups for run in group.runs))),
        ("local epochs", values(lambda plain: field_of(plain, "local", "epochs"))),
        ("seeds", _span(seeds)),
        ("runs", str(num_runs)),
    ]


def partition_name(experiment: Mapping[str, Any]) -> str:
    """How the data are divided among clients."""
    kind = kind_of(experiment.get("partition"))
    if kind == "dirichlet":
        return f"Dirichlet α = {field_of(experiment, 'partition', 'alpha')}"
    return {"iid": "IID"}.get(kind, kind)


def data_and_partition(experiment: Mapping[str, Any]) -> str:
    """The data set and how it is divided."""
    return f"{field_of(experiment, 'data', 'name')}, {partition_name(experiment)}"


def conclusions(report: Report) -> list[str]:
    """What every table says, in sentences."""
    several = len(report.summaries) > 1
    return [
        (f"{MEASURES[summary.measure]}: " if several else "") + conclusion(summary.rows) for summary in report.summaries
    ]


def report_notes(report: Report) -> list[str]:
    """The limits of the comparison; a site that is missing changes what the accuracy is about."""
    missing = [f"{run.name}: {note}" for run in report.runs if (note := site_note(run))]
    return [*missing, *report.notes, *(note for summary in report.summaries for note in summary.notes)]


def rejection_notes(report: Report) -> list[str]:
    """For output that does not list rejected replies: how many there are, and the cause of the first."""
    causes = [each.cause for run in report.runs for each in run.rejections]
    if not causes:
        return []
    replies = "1 reply was" if len(causes) == 1 else f"{len(causes)} replies were"
    example = causes[0] if len(causes) == 1 else f"the first: {causes[0]}"
    return [f"{replies} rejected and not counted ({example}); the page and rejections.jsonl list them."]


def conclusion(rows: Sequence[Row]) -> str:
    """The result of the table in sentences, with its limits."""
    if len(rows) == 1:
        return f"{rows[0].label} reaches {percent(rows[0].accuracy)} %. There is no other method to compare with."
    best, rivals = leader(rows)
    sentences = [f"{best.label} has the highest mean accuracy, {percent(best.accuracy)} %"]
    if best.difference:
        sentences[0] += f", {points(best.difference)} points against {rows[0].label}"
    if not rivals:
        sentences.append("The 95 % interval of its paired difference to every other row excludes 0")
    elif best.accuracy.count == 1:
        sentences.append("One seed gives no confidence interval: run more seeds before you choose a method")
    else:
        sentences.append(f"It cannot be distinguished from {', '.join(_compared(best, row) for row in rivals)}")
    return ". ".join(sentences) + "."


def distinct(values: Iterable[str]) -> list[str]:
    """Each value once, in order."""
    return list(dict.fromkeys(values))


def field_of(plain: Mapping[str, Any], table: str, name: str) -> Any:
    """A field of a table of an experiment; a dash if there is none."""
    value = plain.get(table)
    return value.get(name, "–") if isinstance(value, Mapping) else "–"


def _compared(best: Row, row: Row) -> str:
    difference = paired_difference(best, row)
    return row.label + (f" ({points(difference)} points)" if difference else " (no seed, data and partition in common)")


def _span(seeds: Sequence[int]) -> str:
    """0–4 for neighbours, otherwise a list."""
    if len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds))
