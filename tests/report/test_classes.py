"""Accuracy by class and confused pairs, against counts by hand."""

from pathlib import Path

import numpy as np
import pytest

from spherefed.report.classes import class_results, confused_pairs
from spherefed.report.reports import read_report
from spherefed.report.summary import GLOBAL_TEST, LOCAL_TEST
from support.known_runs import experiment, write_run


def test_counts_are_summed_over_seeds(demo: Path) -> None:
    report = read_report([demo])
    trained, calibrated = class_results(report.groups, report.rows, GLOBAL_TEST)
    # Class 0: 8 of 10 in each of five seeds; class 1: 9 − s right and 1 wrong in seed s.
    assert trained.accuracy.tolist() == pytest.approx([0.8, 35 / 40])
    assert calibrated.accuracy.tolist() == pytest.approx([0.9, 1.0])
    assert confused_pairs(trained).lines == (("0 → 1", "10", "20.0 %"), ("1 → 0", "5", "12.5 %"))
    assert confused_pairs(calibrated).lines == (("0 → 1", "5", "10.0 %"),), "pairs that never happen are not listed"


def test_at_most_ten_pairs_are_listed_the_most_frequent_first(tmp_path: Path) -> None:
    counts = np.random.default_rng(0).integers(1, 50, size=(6, 6))
    write_run(tmp_path / "a", experiment(), 0.5, confusion={"trained": counts.tolist()})
    report = read_report([tmp_path])
    lines = confused_pairs(class_results(report.groups, report.rows, GLOBAL_TEST)[0]).lines
    wrong = sorted((int(counts[i, j]) for i in range(6) for j in range(6) if i != j), reverse=True)
    assert [int(line[1]) for line in lines] == wrong[:10]


def test_recall_at_clients_is_used_where_there_is_no_test_set(tmp_path: Path) -> None:
    changes = {
        "accuracy": {"trained": {LOCAL_TEST: 0.5}},
        "measures": {"trained": {"global_model/local_test/by_samples": {"recall": [0.25, None]}}},
    }
    write_run(tmp_path / "a", experiment(), 0.5, changes=changes)
    report = read_report([tmp_path])
    (found,) = class_results(report.groups, report.rows, LOCAL_TEST)
    assert found.accuracy[0] == 0.25
    assert np.isnan(found.accuracy[1])
    assert found.counts is None
