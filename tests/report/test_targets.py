"""Rounds to a target accuracy, against rounds by hand."""

from pathlib import Path

from spherefed.report.reports import read_report
from spherefed.report.targets import default_targets, first_round, target_table
from support.known_runs import experiment, write_run


def test_the_first_evaluated_round_with_the_target_counts(tmp_path: Path) -> None:
    # Evaluated: round 1 with half, round 3 with 0.9 times, round 4 with the whole accuracy.
    for seed, final in enumerate([0.8, 0.6]):
        write_run(tmp_path / str(seed), experiment(seed), final)
    report = read_report([tmp_path])
    first, second = report.groups[0].runs
    assert [first_round(first, target) for target in (0.3, 0.5, 0.72, 0.79, 0.81)] == [1, 3, 3, 4, None]
    assert first_round(second, 0.79) is None
    (line,) = target_table(report.groups, report.rows, [0.5, 0.7, 0.9]).lines
    assert line == ("FedAvg", "round 3, 1.80 kB, 1.5 s", "round 3 (1 of 2 seeds), 1.80 kB, 1.5 s", "not reached")


def test_default_targets_lie_below_the_baseline(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment(), 0.8)
    assert default_targets(read_report([tmp_path]).rows) == [0.64, 0.72, 0.76]
