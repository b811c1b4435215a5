"""Runs → one HTML page that opens anywhere: no script, no font, no request to any network."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from spherefed.errors import RunError
from spherefed.files import write_bytes
from spherefed.report import figures
from spherefed.report.labels import kind_of
from spherefed.report.reading import CALIBRATED, TRAINED, Partition, Run
from spherefed.report.summary import Group, Row, Summary, compare, leader, paired_difference, summarize
from spherefed.report.tables import CAPTION, cells, percent, points

MOST_REFUSALS = 200
"""Lines of the ledger that the page shows; it says how many there are."""


def write_page(runs: Sequence[Path], out: Path) -> Path:
    """Write the page on the runs at or below `runs` to the file `out`, wholly or not at all."""
    text = render_page(summarize(runs))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(out, text.encode())
        out.chmod(0o644)
    except OSError as error:
        raise RunError(f"cannot write the page {out}: {error.strerror}") from error
    return out


def render_page(summary: Summary) -> str:
    """The page as text; equal summaries give equal pages."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    best, rivals = leader(summary.rows)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["unbroken"] = _unbroken
    template = environment.from_string(files("spherefed.report").joinpath("page.html").read_text(encoding="utf-8"))
    runs = [run for group in summary.groups for run in group.runs]
    return template.render(
        title=", ".join(_distinct(str(group.experiment.get("name", "experiment")) for group in summary.groups)),
        facts=_facts(summary.groups),
        verdict=_verdict(summary.rows),
        table=cells(summary),
        best=summary.rows.index(best) if len(summary.rows) > 1 and not rivals else None,
        caption=CAPTION,
        rounds=Markup(figures.accuracy_per_round(summary.groups, summary.rows)),
        final=Markup(figures.final_accuracy(summary.rows)),
        traffic=Markup(figures.traffic(summary.rows)),
        partitions=[{**block, "maps": [Markup(svg) for svg in block["maps"]]} for block in _partition_blocks(runs)],
        accuracies=_accuracies(summary.groups),
        seeds=_seeds(summary.rows),
        notes=summary.notes,
        groups=[_made(group) for group in summary.groups],
        environments=_environments(runs),
        refusals=[(run.name, refusal) for run in runs for refusal in run.ledger],
        most_refusals=MOST_REFUSALS,
    )


def _facts(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """What the experiments have in common, or the values between which they vary."""

    def said(of: Callable[[Mapping[str, Any]], Any]) -> str:
        return ", ".join(_distinct(str(of(group.experiment)) for group in groups))

    seeds = sorted({run.seed for group in groups for run in group.runs})
    return [
        ("data", said(lambda plain: _at(plain, "data", "name"))),
        ("partition", said(_partition_name)),
        ("clients", ", ".join(_distinct(str(len(g.runs[0].partition.label_counts)) for g in groups))),
        ("rounds", ", ".join(_distinct(str(run.rounds) for group in groups for run in group.runs))),
        ("local epochs", said(lambda plain: _at(plain, "local", "epochs"))),
        ("seeds", ", ".join(map(str, seeds))),
    ]


def _partition_name(experiment: Mapping[str, Any]) -> str:
    kind = kind_of(experiment.get("partition"))
    if kind == "dirichlet":
        return f"Dirichlet α = {_at(experiment, 'partition', 'alpha')}"
    return {"iid": "IID"}.get(kind, kind)


def _verdict(rows: Sequence[Row]) -> str:
    """What the table says and what it does not, in words."""
    if len(rows) == 1:
        return f"{rows[0].label} reaches {percent(rows[0].accuracy)} %. There is nothing to compare it with."
    best, rivals = leader(rows)
    said = [f"{best.label} has the highest mean accuracy, {percent(best.accuracy)} %"]
    if best.difference:
        said[0] += f", {points(best.difference)} points against {rows[0].label}"
    if not rivals:
        said.append("The 95 % interval of its paired difference to every other row excludes 0")
    elif best.accuracy.count == 1:
        said.append("One seed says nothing about chance: run more before choosing")
    else:
        said += [f"It cannot be told apart from {_against(best, row)}" for row in rivals]
    return ". ".join(said) + "."


def _against(best: Row, row: Row) -> str:
    difference = paired_difference(best, row)
    return row.label + (f" ({points(difference)} points)" if difference else " (no seed in common)")


def _partition_blocks(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Per kind of partition: the first seed's as a large map, those of other seeds as small ones."""
    kinds: dict[str, dict[str, tuple[str, Partition]]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        name = f"{_at(run.experiment, 'data', 'name')}, {_partition_name(run.experiment)}"
        kinds.setdefault(name, {}).setdefault(run.partition.digest, (f"seed {run.seed}", run.partition))
    blocks = []
    for place, (name, found) in enumerate(kinds.items()):
        (seed, first), *others = found.values()
        maps = [figures.partition_map(first, f"partition{place}", f"Examples by client and class, {name}, {seed}")]
        if others:
            maps.append(figures.partition_maps(others, f"partitions{place}", f"Partitions of the other seeds, {name}"))
        blocks.append({"name": name, "seed": seed, "maps": maps, "num_others": len(others)})
    return blocks


def _accuracies(groups: Sequence[Group]) -> dict[str, Any]:
    """Every accuracy that all runs measured, by name."""
    stages = [stage for group in groups for run in group.runs for stage in run.stages.values()]
    names = [name for name in stages[0].accuracy if all(name in stage.accuracy for stage in stages)]
    columns = [compare(groups, name) for name in names]
    labels = [row.label for row in columns[0]]
    lines = [(label, *(percent(column[i].accuracy) for column in columns)) for i, label in enumerate(labels)]
    return {"columns": names, "lines": lines}


def _seeds(rows: Sequence[Row]) -> dict[str, Any]:
    """The accuracy of every seed in per cent."""
    seeds = sorted({seed for row in rows for seed in row.seeds})
    lines = []
    for row in rows:
        found = dict(zip(row.seeds, row.accuracies, strict=True))
        lines.append((row.label, *(f"{100 * found[seed]:.2f}" if seed in found else "–" for seed in seeds)))
    return {"columns": [f"seed {seed}" for seed in seeds], "lines": lines}


def _made(group: Group) -> dict[str, Any]:
    """How the runs of a group were made."""
    stages = [stage for stage in (TRAINED, CALIBRATED) if any(stage in run.stages for run in group.runs)]
    return {
        "label": " → ".join(group.labels[stage] for stage in stages),
        "experiment": json.dumps(group.experiment, indent=2, ensure_ascii=False),
        "runs": [
            {
                "name": run.name,
                "seed": run.seed,
                "started": run.environment.get("started", "–"),
                "partition": run.partition.digest,
                "weights": run.weights_sha256,
                "calibration": _solved(run.calibration),
            }
            for run in group.runs
        ],
    }


def _solved(calibration: Mapping[str, Any] | None) -> str:
    if calibration is None:
        return "–"
    plain = {name: value for name, value in calibration.items() if isinstance(value, str | int | float)}
    return ", ".join(
        f"{name} {value:.3g}" if type(value) is float else f"{name} {value}" for name, value in plain.items()
    )


def _environments(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The machines and versions, each once, with how many runs they made."""
    found: dict[str, int] = {}
    for run in runs:
        shared = {name: value for name, value in run.environment.items() if name not in ("seed", "started")}
        text = json.dumps(shared, ensure_ascii=False)
        found[text] = found.get(text, 0) + 1
    return [{"count": count, "values": list(json.loads(text).items())} for text, count in found.items()]


def _unbroken(text: str) -> str:
    """No line ends between a number and its sign or unit."""
    for sign in ("±", "=", "%", "points"):
        text = text.replace(f" {sign}", f"\u00a0{sign}")
    return text.replace("± ", "±\u00a0").replace("= ", "=\u00a0")


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _at(plain: Mapping[str, Any], table: str, name: str) -> Any:
    value = plain.get(table)
    return value.get(name, "–") if isinstance(value, Mapping) else "–"
