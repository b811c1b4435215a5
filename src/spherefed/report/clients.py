"""Accuracy of every client, and what is known about every client or site of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from spherefed.deployment.participation import missing_sites, site_rows
from spherefed.report.drawing import (
    WIDTH,
    Drawing,
    Spot,
    line_style,
    new_figure,
    place_legend,
    series,
    short,
    styled,
    thinned,
)
from spherefed.report.groups import Group
from spherefed.report.result_figures import limit_accuracy
from spherefed.report.run_files import Run
from spherefed.report.summary import LOCAL_TEST, PERSONAL_TEST, Row
from spherefed.report.tables import Cells, human_bytes

MAX_LISTED = 60
"""Clients that a table lists; more are only drawn."""

PERSONAL_NOTE = "the personal model of each client on the client's own held-out examples"
LOCAL_NOTE = "the global model on each client's own held-out examples"
WEIGHTED_NOTE = (
    "the global model on the test set, with classes weighted as in each client's training examples; "
    "this estimates the accuracy on data like the client's own"
)


@dataclass(frozen=True, slots=True)
class ClientAccuracies:
    """A method at one stage: the accuracy of every client of every seed, ascending."""

    row: Row
    note: str
    """What was measured."""
    values: tuple[tuple[float, int, int], ...]
    """(accuracy, client, seed)."""


def client_accuracies(groups: Sequence[Group], rows: Sequence[Row], measure: str) -> list[ClientAccuracies]:
    """One per row for which it is known."""
    found = []
    for row in rows:
        values = []
        note = WEIGHTED_NOTE
        for run in groups[row.group].runs:
            known, note = _by_client(run, row.stage, measure)
            values += [(accuracy, client, run.seed) for client, accuracy in known.items()]
        if values:
            found.append(ClientAccuracies(row, note, tuple(sorted(values))))
    return found


def _by_client(run: Run, stage: str, measure: str) -> tuple[dict[int, float], str]:
    """The accuracy of each client of a run, and what it is."""
    if measure == PERSONAL_TEST:
        clients: Mapping[str, float] = (run.personal or {}).get("clients", {})
        return {int(client): float(value) for client, value in clients.items()}, PERSONAL_NOTE
    local = (run.result.get("evaluated") or {}).get(stage) or {}
    if local and not (run.personal and stage == "trained"):  # then these are the counts of the personal models
        return {int(k): correct / total for k, (correct, total) in local.items() if total}, LOCAL_NOTE
    confusion = run.diagnostics.confusion.get(stage)
    if measure == LOCAL_TEST or confusion is None or not run.partition.is_known:
        return {}, WEIGHTED_NOTE
    totals = confusion.sum(axis=1)
    recall = np.diag(confusion) / np.maximum(totals, 1)
    counts = np.array(run.partition.label_counts) * (totals > 0)
    sizes = counts.sum(axis=1)
    return {k: float(counts[k] @ recall / sizes[k]) for k in range(len(counts)) if sizes[k]}, WEIGHTED_NOTE


@styled
def client_figure(found: Sequence[ClientAccuracies], name: str = "clients") -> Drawing:
    """Clients sorted by accuracy, from the lowest to the highest, as a share of all clients."""
    figure, axes = new_figure(WIDTH, 2.75 + 0.155 * len(found))
    handles, spots = [], []
    for each in found:
        number = len(each.values)
        xs = [100 * (i + 0.5) / number for i in range(number)]
        ys = [100 * accuracy for accuracy, _, _ in each.values]
        row = each.row
        handles += axes.plot(
            xs, ys, line_style(row.group), color=series(row.group), lw=1.6, label=short(row.label),
            marker="o" if number <= 60 else None, ms=3,
            alpha=1.0 if row.stage != "trained" or len(found) == 1 else 0.75,
        )  # fmt: skip
        if row.stage == "trained" and any(o.row.group == row.group and o is not each for o in found):
            handles[-1].set_linestyle(":")
        for i in thinned(number):
            accuracy, client, seed = each.values[i]
            text = f"{row.label}, client {client}, seed {seed}: {100 * accuracy:.1f} %"
            spots.append(Spot(axes, xs[i], ys[i], text))
    limit_accuracy(axes.set_ylim, [100 * value for each in found for value, _, _ in each.values])
    axes.set_xlim(0, 100)
    axes.set_xlabel("clients sorted by accuracy, %")
    axes.set_ylabel("accuracy, %")
    axes.grid(axis="y")
    place_legend(axes, handles)
    description = "; ".join(
        f"{each.row.label}: {100 * each.values[0][0]:.1f} to {100 * each.values[-1][0]:.1f} per cent" for each in found
    )
    return Drawing(name, "Accuracy by client", description, figure, spots)


def client_table(run: Run) -> Cells:
    """Every client or site of a run: examples, rounds with a counted reply, rejections, accuracy, bytes."""
    sites = run.sites
    stage = list(run.stages)[-1] if run.stages else "trained"
    accuracy, _ = _by_client(run, stage, PERSONAL_TEST if run.personal else "")
    columns = ["site" if sites else "client", "examples", "counted rounds", "rejected"]
    columns += ["accuracy"] if accuracy else []
    lines = []
    for client in range(run.partition.num_clients):
        name = f"{sites[client]} (client {client})" if client in sites else str(client)
        examples = _examples(run, client)
        counted = sum(client in line.examples for line in run.lines)
        rejected = sum(rejection.client == client for rejection in run.rejections)
        line = [name, "–" if examples is None else str(examples), f"{counted} of {len(run.lines)}", str(rejected)]
        line += [f"{100 * accuracy[client]:.2f} %" if client in accuracy else "–"] if accuracy else []
        up = sum(each.bytes_up.get(client, 0) for each in run.lines)
        down = sum(each.bytes_down.get(client, 0) for each in run.lines)
        lines.append((*line, human_bytes(up), human_bytes(down)))
    return Cells(columns=(*columns, "sent", "received"), lines=tuple(lines))


def site_note(run: Run) -> str:
    """Which sites of a finished run are missing, and since when; empty if all took part."""
    found = missing_sites(site_rows(run.path), len(run.lines)) if run.finished and run.sites else None
    return f"{found[0].upper()}{found[1:]}." if found else ""


def _examples(run: Run, client: int) -> int | None:
    """Training examples: as last claimed by the client, or as in the partition."""
    claimed = [line.examples[client] for line in run.lines if client in line.examples]
    if claimed:
        return claimed[-1]
    return sum(run.partition.label_counts[client]) if run.partition.is_known else None
