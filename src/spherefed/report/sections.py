"""The sections of a page that are about results: accuracy, training, clients, classes, calibration, traffic."""

from collections.abc import Iterable, Sequence
from itertools import count

from spherefed.report import captions, curves, maps, result_figures, spectrum
from spherefed.report.blocks import Block, Columns, Details, Figure, Section, Table
from spherefed.report.classes import class_results, confused_pairs
from spherefed.report.clients import MAX_LISTED, client_accuracies, client_figure, client_table, site_note
from spherefed.report.curve_points import trained_groups
from spherefed.report.groups import Group
from spherefed.report.personal import CAPTION as PERSONAL_CAPTION
from spherefed.report.personal import personal_cells, rows_of
from spherefed.report.reports import Report
from spherefed.report.run_files import Partition, Run
from spherefed.report.summary import GLOBAL_TEST, MEASURES, PERSONAL_TEST, Row, Summary, compare, leader
from spherefed.report.tables import Cells, caption, cells, percent
from spherefed.report.targets import default_targets, target_table
from spherefed.report.wording import data_and_partition


def result_sections(report: Report, targets: Sequence[float] | None = None) -> list[Section]:
    """Every section for which the runs have values."""
    main = next((each for each in report.summaries if each.measure == GLOBAL_TEST), None)
    rows = list(main.rows) if main else []
    found = [
        Section("result", "Result", _results(report)),
        Section("training", "Training", _training(report, rows, targets)),
        Section("clients", "Clients", _clients(report)),
        Section("classes", "Classes", _classes(report)),
        Section("calibration", "Calibration", _calibration(report)),
        Section("traffic", "Traffic", _traffic(report)),
    ]
    return [section for section in found if section.blocks]


def _results(report: Report) -> list[Block]:
    blocks: list[Block] = []
    for number, summary in enumerate(report.summaries):
        rows = summary.rows
        title = MEASURES[summary.measure] if len(report.summaries) > 1 else ""
        best, rivals = leader(rows)
        mark = rows.index(best) if len(rows) > 1 and not rivals else None
        if summary.measure == PERSONAL_TEST:
            table = Table(personal_cells(rows_of(report)), PERSONAL_CAPTION, mark, title)
        else:
            notes = [caption(summary), *([captions.BEST] if len(rows) > 1 else [])]
            table = Table(cells(summary), " ".join(notes), mark, title)
        baseline = f" The dashed line is the mean of {rows[0].label}." if len(rows) > 1 else ""
        name = "final" if number == 0 else f"final{number}"
        blocks += [table, Figure(result_figures.final_accuracy(rows, name), captions.FINAL + baseline)]
        blocks += [Details("Every seed", [Table(seed_cells(rows))])]
    every = _all_accuracies(report)
    if len(every.columns) > 2:
        blocks.append(Details("All measured accuracies", [Table(every, captions.ALL_ACCURACIES)]))
    return blocks


def _training(report: Report, rows: list[Row], targets: Sequence[float] | None) -> list[Block]:
    groups = report.groups
    shown = trained_groups(groups, report.rows)
    if not shown:
        return []
    blocks: list[Block] = []
    if any(GLOBAL_TEST in line.accuracy for i in shown for run in groups[i].runs for line in run.lines):
        figures: list[Block] = [
            Figure(curves.accuracy_per_round(groups, rows), captions.ROUNDS),
            Figure(curves.loss_per_round(groups, report.rows), captions.LOSS),
            Figure(curves.accuracy_per_byte(groups, rows), captions.BYTES),
            Figure(curves.accuracy_per_second(groups, rows), captions.SECONDS),
        ]
        blocks.append(Columns(figures))
        wanted = list(targets or (default_targets(rows) if rows else ()))
        table = target_table(groups, rows, wanted)
        if wanted and table.lines:
            blocks.append(Table(table, captions.TARGETS, title="Rounds to a target accuracy"))
    else:
        caption = f"{captions.LOSS} {captions.NO_TEST_SET}"
        blocks.append(Columns([Figure(curves.loss_per_round(groups, report.rows), caption)]))
    return blocks


def _clients(report: Report) -> list[Block]:
    blocks: list[Block] = []
    figures: list[Block] = []
    for number, summary in enumerate(report.summaries):
        found = client_accuracies(report.groups, summary.rows, summary.measure)
        if found:
            name = "clients" if number == 0 else f"clients{number}"
            notes = dict.fromkeys(each.note for each in found)
            caption = f"Accuracy by client: {'; '.join(notes)}. {captions.CLIENTS}"
            figures.append(Figure(client_figure(found, name), caption))
    agreement = curves.consistency(report.groups, report.rows)
    if agreement is not None:
        figures.append(Figure(agreement, captions.CONSISTENCY))
    partitions, more = _partitions(report.runs)
    blocks += [Columns([*figures, *partitions])] if figures or partitions else []
    return [*blocks, *more, *_client_tables(report)]


def _partitions(runs: Iterable[Run]) -> tuple[list[Block], list[Block]]:
    """For each kind of partition: a large map of the first seed; small maps of the other seeds to open."""
    kinds: dict[str, dict[str, tuple[str, Partition]]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        if run.partition.is_known:
            name = data_and_partition(run.experiment)
            kinds.setdefault(name, {}).setdefault(run.partition.digest, (f"seed {run.seed}", run.partition))
    large: list[Block] = []
    small: list[Block] = []
    for index, (name, found) in enumerate(kinds.items()):
        (seed, first), *others = found.values()
        title = f"Examples by client and class, {name}, {seed}"
        drawing = maps.partition_map(first, f"partition{index}", title)
        large.append(Figure(drawing, f"Training examples by client and class: {name}, {seed}."))
        if others:
            title = f"Partitions of the other seeds, {name}"
            drawing = maps.partition_maps(others, f"partitions{index}", title)
            summary = (
                f"Partitions of the other {len(others)} seeds" if len(others) > 1 else "Partition of the other seed"
            )
            small.append(Details(summary, [Figure(drawing, f"{name}.")]))
    return large, small


def _client_tables(report: Report) -> list[Block]:
    """A table of the sites of every deployed run; of the clients of the first run of other groups, to open."""
    blocks: list[Block] = []
    for group in report.groups:
        for run in group.runs:
            if run.sites:
                title = f"Sites of {run.name}, {group.name}"
                blocks.append(Table(client_table(run), site_note(run), title=title))
        first = group.runs[0]
        if not first.sites and first.partition.num_clients <= MAX_LISTED and first.lines:
            note = f"Run {first.name}, seed {first.seed}."
            blocks.append(Details(f"Every client: {group.name}", [Table(client_table(first), note)]))
    return blocks


def _classes(report: Report) -> list[Block]:
    blocks: list[Block] = []
    for number, summary in enumerate(report.summaries):
        results = class_results(report.groups, summary.rows, summary.measure)
        if not results:
            continue
        results = [each for each in results if each.classes == results[0].classes]
        several = f" {MEASURES[summary.measure]}." if len(report.summaries) > 1 else ""
        drawing = maps.class_map(
            [(each.label, each.accuracy) for each in results],
            results[0].classes,
            f"classes{number}",
            "Accuracy by class",
        )
        part: list[Block] = [Figure(drawing, captions.CLASSES + several)]
        counted = [each for each in results if each.counts is not None]
        tables = [Table(confused_pairs(each), title=f"Most confused pairs: {each.label}") for each in counted]
        blocks += [Columns([*part, *tables[-1:]])]
        blocks += [Details("Confused pairs of the other methods", [Columns(tables[:-1])])] if tables[:-1] else []
    return blocks


def _calibration(report: Report) -> list[Block]:
    table = spectrum.solve_table(report.groups)
    blocks: list[Block] = []
    if found := spectrum.spectra(report.groups):
        blocks.append(Figure(spectrum.spectrum_figure(report.groups, found), captions.SPECTRUM))
    if table.lines:
        blocks.append(Table(table, "First seed of each method."))
    return [Columns(blocks)] if len(blocks) > 1 else blocks


def _traffic(report: Report) -> list[Block]:
    numbers = count()
    figures: list[Block] = []
    for summary in report.summaries:
        number = next(numbers)
        name = "traffic" if number == 0 else f"traffic{number}"
        figures.append(Figure(result_figures.traffic(summary.rows, name), captions.TRAFFIC))
    return [Columns(figures)] if len(figures) > 1 else figures


def seed_cells(rows: Sequence[Row]) -> Cells:
    """The accuracy of every seed, in per cent."""
    seeds = sorted({seed for row in rows for seed in row.seeds})
    lines = []
    for row in rows:
        found = dict(zip(row.seeds, row.accuracies, strict=True))
        lines.append((row.label, *(f"{100 * found[seed]:.2f}" if seed in found else "–" for seed in seeds)))
    return Cells(columns=("method", *(f"seed {seed}" for seed in seeds)), lines=tuple(lines))


def _all_accuracies(report: Report) -> Cells:
    """Every accuracy that any run measured, one column per name."""
    stages = [stage for run in report.runs for stage in run.stages.values()]
    names = list(dict.fromkeys(name for stage in stages for name in stage.accuracy))
    lines: dict[tuple[int, str], dict[str, str]] = {}
    labels: dict[tuple[int, str], str] = {}
    for name in names:
        for row in compare(report.groups, name, report.groups):
            key = (row.group, row.stage)
            labels.setdefault(key, _group_label(report.groups, row))
            lines.setdefault(key, {})[name] = percent(row.accuracy)
    shown = tuple((labels[key], *(lines[key].get(name, "–") for name in names)) for key in sorted(lines))
    return Cells(columns=("method", *names), lines=shown)


def _group_label(groups: Sequence[Group], row: Row) -> str:
    has_personal = any(run.personal is not None for run in groups[row.group].runs)
    return groups[row.group].name if has_personal and row.stage == "trained" else row.label


def measure_title(summary: Summary) -> str:
    """What the accuracies of a summary are, in words."""
    return MEASURES.get(summary.measure, summary.measure)
