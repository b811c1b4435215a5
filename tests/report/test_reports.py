"""Reports of mixed runs: every kind of run has a table, a page and its panels."""

from pathlib import Path

import numpy as np
import pytest

from spherefed.report.clients import client_accuracies, client_table
from spherefed.report.page import render_page
from spherefed.report.reports import read_report
from spherefed.report.summary import GLOBAL_TEST, LOCAL_TEST, PERSONAL_TEST
from spherefed.report.terminal import report_tables
from support.known_runs import FFC, experiment, write_run


def test_mixed_runs_lose_no_group(mixed: Path) -> None:
    report = read_report([mixed])
    labels = {summary.measure: [row.label for row in summary.rows] for summary in report.summaries}
    assert labels == {
        GLOBAL_TEST: ["FedAvg"],
        PERSONAL_TEST: ["FedAvg + fine-tuning", "FedAvg + local FFC"],
        LOCAL_TEST: ["FedAvg"],
    }
    assert {row.group for row in report.rows} == set(range(len(report.groups)))
    assert [len(cells.lines) for cells, _ in report_tables(report)] == [1, 2, 1]


@pytest.mark.slow
def test_personal_and_deployed_runs_have_a_page_with_their_own_panels(mixed: Path) -> None:
    html = render_page(read_report([mixed]))
    for said in (
        "Personal models on each client&#39;s held-out examples",
        "Global model on the clients&#39; held-out examples",
        "Sites of deployed",
        "north (client 0)",
        "deployed: 2 of 3 sites took part in the last round; west missing since round 2.",
        "the node of west is not connected",
    ):
        assert said in html, said
    for alone in ("fine-tune", "local-ffc", "deployed"):
        assert "<h2>Result</h2>" in render_page(read_report([mixed / alone]))


def test_clients_of_a_test_set_are_weighted_by_their_classes(demo: Path) -> None:
    report = read_report([demo])
    found = client_accuracies(report.groups, report.rows[:1], GLOBAL_TEST)
    # Seed 4 has 8 of 10 examples of class 0 right, and 5 of 6 of class 1; client 2 has 3 and 4 examples of them.
    values = {(client, seed): accuracy for accuracy, client, seed in found[0].values}
    assert values[2, 4] == pytest.approx((3 * 8 / 10 + 4 * 5 / 6) / 7)
    assert values[0, 0] == pytest.approx(0.8)
    assert len(values) == 3 * 5


def test_clients_with_personal_models_have_their_own_accuracy(mixed: Path) -> None:
    report = read_report([mixed])
    summary = next(each for each in report.summaries if each.measure == PERSONAL_TEST)
    first, _ = client_accuracies(report.groups, summary.rows, PERSONAL_TEST)
    assert [value for value, _, seed in first.values if seed == 0] == [0.7, 0.9, 1.0]


def test_clients_that_tested_the_global_model_have_recorded_counts(tmp_path: Path) -> None:
    changes = {
        "accuracy": {"trained": {LOCAL_TEST: 0.5}},
        "evaluated": {"trained": {"0": [3, 4], "1": [0, 0], "2": [1, 2]}},
    }
    write_run(tmp_path / "a", experiment(), 0.5, changes=changes)
    report = read_report([tmp_path])
    (found,) = client_accuracies(report.groups, report.rows, LOCAL_TEST)
    assert found.values == ((0.5, 2, 0), (0.75, 0, 0))
    table = client_table(report.runs[0])
    assert table.columns == ("client", "examples", "counted rounds", "rejected", "accuracy", "sent", "received")
    assert table.lines[0] == ("0", "5", "4 of 4", "0", "75.00 %", "800 B", "1.60 kB")


@pytest.mark.slow
def test_a_thousand_clients_make_a_page_of_moderate_size(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(30, [0.1] * 10, size=1000).tolist()
    matrix = (np.eye(10, dtype=int) * 9 + 1).tolist()
    write_run(tmp_path / "a", experiment(calibration=FFC), 0.8, 0.9, counts=counts, confusion={"trained": matrix})
    html = render_page(read_report([tmp_path]))
    assert len(html) < 400_000
    assert "sorted by most frequent class" in html
    assert "Every client" not in html
