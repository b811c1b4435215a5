"""From records to the JSON of an item: every number that its page shows."""

from collections.abc import Mapping, Sequence
from typing import Any

from spherefed.report.summary import Estimate, estimate
from spherefed.reproduce.causes import likely_cause
from spherefed.reproduce.item import ACCURACIES, Cell, Claim, Item, Key, Metric
from spherefed.reproduce.judging import judge_claim, quantity
from spherefed.reproduce.scales import Scale
from spherefed.reproduce.store import Record, Records, Store, short_digest
from spherefed.reproduce.used_tuning import used_tuning
from spherefed.schema import to_plain

FORMAT = 1
"""Of the JSON files of items."""


def summarize_item(item: Item, scale: Scale, seeds: Sequence[int], store: Store, command: str) -> dict[str, Any]:
    """The item as plain data; cells without records say so."""
    found: dict[str, Any] = {
        "format": FORMAT,
        "item": item.name,
        "title": item.title,
        "claim": item.claim,
        "scale": scale.name,
        "unit": item.unit,
        "command": command,
        "deviations": [*item.deviations, *(() if item.computed else scale.deviations)],
    }
    if item.computed is not None:
        return found | {"computed": item.computed()}
    records = store.records(item.experiments(), seeds)
    values = _values(item, seeds, records)
    diverged = {seed: [cell.key for cell in item.cells if seed in _failures(cell, records)] for seed in seeds}
    claims = [_claim(claim, values, diverged) for claim in item.claims]
    failed = any(claim["verdict"] == "does not hold" for claim in claims)
    return found | {
        "protocol": scale.description,
        "other_rounds": _other_rounds(item, scale),
        "configuration": to_plain(scale.template),
        "dataset": _dataset(item, store),
        "seeds": list(seeds),
        "tuning": used_tuning(item, scale),
        "trainings": len(item.trainings()),
        "seconds": round(_seconds(item, records), 1),
        "machines": _machines(records),
        "cells": [_cell(cell, values, records) for cell in item.cells],
        "claims": claims,
        "likely_cause": likely_cause(scale.name, item.name) if failed else None,
        "curves": _curves(item, records),
        **_maps(item, records),
    }


def _other_rounds(item: Item, scale: Scale) -> dict[str, list[str]]:
    """Number of rounds → the columns that have it instead of the scale's; rows, where columns have several numbers."""
    cells = [(cell, cell.experiment.rounds) for cell in item.cells if cell.experiment is not None]
    by_column = [(cell.column, rounds) for cell, rounds in cells]
    by_row = [(cell.row, rounds) for cell, rounds in cells]
    unique = len(set(by_column)) == len({column for column, _ in by_column})
    found: dict[str, list[str]] = {}
    for name, rounds in dict.fromkeys(by_column if unique else by_row):
        if rounds != scale.template.rounds:
            found.setdefault(str(rounds), []).append(name)
    return found


def _records_of(cell: Cell, records: Records) -> Mapping[int, Record]:
    """Seed → record of a cell."""
    return {} if cell.experiment is None else records[cell.experiment.digest()]


def _values(item: Item, seeds: Sequence[int], records: Records) -> dict[int, dict[Key, float]]:
    """Seed → cell → value, of the cells that have one."""
    found: dict[int, dict[Key, float]] = {seed: {} for seed in seeds}
    for cell in item.cells:
        for seed, record in _records_of(cell, records).items():
            value = value_of(record, cell.metric)
            if value is not None:
                found[seed][cell.key] = value
    return found


def value_of(record: Record, metric: Metric) -> float | None:
    """One number of a record, accuracies in percent; None if the run failed or has no such number.

    Clients that train alone do not depend on the run, whose record theirs is added to.
    """
    if "error" in record and metric != "local_only":
        return None
    if metric in ("personal", "personal_std"):
        part = "mean" if metric == "personal" else "std"
        return None if record["personal"] is None else 100 * float(record["personal"][part])
    if metric in ("alignment", "mixing", "head_seconds", "local_only"):
        found: float | None = record.get(metric)
        return found if found is None or metric != "local_only" else 100 * found
    if metric in ACCURACIES:
        accuracy = record["accuracy"].get(metric)
        return None if accuracy is None else 100 * float(accuracy)
    curve = record["curves"].get(metric)
    return float(curve["values"][-1]) if curve else None


def _cell(cell: Cell, values: Mapping[int, Mapping[Key, float]], records: Records) -> dict[str, Any]:
    own = {seed: found[cell.key] for seed, found in values.items() if cell.key in found}
    difference = None
    if cell.base is not None:
        pairs = [values[s][cell.key] - values[s][cell.base] for s in own if cell.base in values[s]]
        difference = _interval(pairs)
    return {
        "row": cell.row,
        "column": cell.column,
        "metric": cell.metric,
        "paper": cell.paper,
        "digest": None if cell.experiment is None else short_digest(cell.experiment),
        "values": {str(seed): round(value, 4) for seed, value in own.items()},
        "ours": _interval(list(own.values())),
        "difference_to": None if cell.base is None else list(cell.base),
        "difference": difference,
        "failed": _failures(cell, records),
    }


def _failures(cell: Cell, records: Records) -> list[int]:
    """Seeds whose run diverged; that of a federation says nothing about clients that train alone."""
    if cell.metric == "local_only":
        return []
    return [seed for seed, record in _records_of(cell, records).items() if "error" in record]


def _claim(
    claim: Claim, values: Mapping[int, Mapping[Key, float]], diverged: Mapping[int, Sequence[Key]]
) -> dict[str, Any]:
    found = {seed: quantity(claim, own, diverged[seed]) for seed, own in values.items()}
    lost = [
        seed for seed, value in found.items() if value is None and set(diverged[seed]) & {*claim.plus, *claim.minus}
    ]
    numbers = [value for value in found.values() if value is not None]
    return {
        "text": claim.text,
        "paper": None if claim.paper is None else round(claim.paper, 4),
        "margin": claim.margin,
        "values": {str(seed): round(value, 4) for seed, value in found.items() if value is not None},
        "ours": _interval(numbers),
        "diverged": lost,
        "verdict": judge_claim(claim, numbers, has_diverged=bool(lost)),
    }


def _interval(values: Sequence[float]) -> dict[str, Any] | None:
    if not values:
        return None
    found: Estimate = estimate(values)
    half = found.half_width
    return {
        "mean": round(found.mean, 4),
        "half_width": None if half is None else round(half, 4),
        "seeds": found.count,
        "lowest": round(min(values), 4),
        "highest": round(max(values), 4),
    }


def _dataset(item: Item, store: Store) -> dict[str, Any] | None:
    found = (store.dataset(experiment) for experiment in item.experiments())
    return next((dataset for dataset in found if dataset is not None), None)


def _seconds(item: Item, records: Records) -> float:
    """Time of the trainings, each once, and of what follows them."""
    trainings: dict[tuple[str, int], float] = {}
    after = 0.0
    for experiment in item.experiments():
        training = experiment.training_part().digest()
        for seed, record in records[experiment.digest()].items():
            if "error" not in record:
                trainings[training, seed] = record["seconds"]["train"]
                after += sum(value for name, value in record["seconds"].items() if name != "train")
    return sum(trainings.values()) + after


def _machines(records: Records) -> list[str]:
    finished = [record for found in records.values() for record in found.values() if "error" not in record]
    return sorted({f"{record['machine']}, torch {record['torch']}" for record in finished})


def _maps(item: Item, records: Records) -> dict[str, Any]:
    """The maps of features of the first seed, by row; empty for items without such maps."""
    found = {}
    for cell in item.cells:
        record = _records_of(cell, records).get(0, {})
        if cell.metric == "mixing" and record.get("map"):
            found[cell.row] = record["map"]
    return {"maps": found} if found else {}


def _curves(item: Item, records: Records) -> list[dict[str, Any]]:
    """Per cell the mean over seeds after every evaluated round: of accuracy, or of what the cell measures."""
    found, seen = [], set[tuple[str, str]]()
    for cell in item.cells:
        if cell.experiment is None:
            continue
        name = "accuracy" if cell.metric in ACCURACIES else cell.metric
        key = (cell.experiment.training_part().digest(), name)
        curves = [r["curves"][name] for r in _records_of(cell, records).values() if name in r.get("curves", {})]
        if key in seen or not curves:
            continue
        seen.add(key)
        factor = 100 if name == "accuracy" else 1
        means = [factor * sum(point) / len(point) for point in zip(*(c["values"] for c in curves), strict=True)]
        found.append(
            {
                "row": cell.row,
                "column": cell.column,
                "measure": name,
                "rounds": curves[0]["rounds"],
                "means": [round(mean, 4) for mean in means],
            }
        )
    return found
