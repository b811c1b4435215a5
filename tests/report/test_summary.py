"""Statistics over seeds: means, intervals and paired differences against numbers computed by hand and by scipy."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spherefed.errors import ConfigError, RunError
from spherefed.report import summarize
from spherefed.report.page import render_page
from spherefed.report.reports import read_report
from spherefed.report.summary import estimate, group_runs, leader, paired_difference
from spherefed.report.tables import cells
from support.known_runs import (
    FEDAVG_CALIBRATED,
    FEDAVG_TRAINED,
    FFC,
    GLOBAL,
    SPHERE,
    SPHERE_CALIBRATED,
    SPHERE_TRAINED,
    by_hand,
    experiment,
    write_run,
)


def test_rows_hold_mean_interval_and_paired_difference(demo: Path) -> None:
    rows = summarize([demo]).rows
    assert [row.label for row in rows] == ["FedAvg", "FedAvg + FFC", "SphereFed before FFC", "SphereFed"]
    known = [FEDAVG_TRAINED, FEDAVG_CALIBRATED, SPHERE_TRAINED, SPHERE_CALIBRATED]
    for row, values in zip(rows, known, strict=True):
        mean, half = by_hand(values)
        assert row.seeds == (0, 1, 2, 3, 4)
        assert row.accuracies == tuple(values)
        assert row.accuracy.mean == pytest.approx(mean, rel=1e-12)
        assert row.accuracy.half_width == pytest.approx(half, rel=1e-6)
    assert rows[0].difference is None
    for row, values in zip(rows[1:], known[1:], strict=True):
        mean, half = by_hand(np.subtract(values, FEDAVG_TRAINED).tolist())
        assert row.difference is not None
        assert row.difference.mean == pytest.approx(mean, rel=1e-9)
        assert row.difference.half_width == pytest.approx(half, rel=1e-6)


def test_calibrated_rows_pay_for_training_too(demo: Path) -> None:
    trained, calibrated = summarize([demo]).rows[:2]
    assert (trained.bytes_up, trained.bytes_down, trained.seconds) == (1_000_002, 2_000_000, 2.0)
    assert (calibrated.bytes_up, calibrated.bytes_down, calibrated.seconds) == (1_030_002, 2_000_500, 2.5)


@pytest.mark.usefixtures("undrawn")
def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment(calibration=FFC), 0.8, 0.9)
    summary = summarize([tmp_path])
    assert [row.accuracy.half_width for row in summary.rows] == [None, None]
    assert cells(summary).lines[1][2:4] == ("90.00", "+10.00")
    assert leader(summary.rows) == (summary.rows[1], (summary.rows[0],)), "one seed must not crown a winner"
    assert "One seed gives no confidence interval" in render_page(read_report([tmp_path]))


def test_pairing_ignores_the_order_of_runs_and_seeds_that_only_one_method_ran(tmp_path: Path) -> None:
    for seed in (2, 0, 1):
        write_run(tmp_path / f"f{seed}", experiment(seed), 0.5 + 0.1 * seed)
    for seed in (3, 1, 2):
        write_run(tmp_path / f"p{seed}", experiment(seed, **{"algorithm.prox_mu": 0.1}), 0.55 + 0.1 * seed)
    summary = summarize([tmp_path])
    prox = summary.rows[1]
    assert prox.label == "FedProx"
    assert prox.difference is not None
    assert prox.difference.count == 2
    assert prox.difference.mean == pytest.approx(0.05)
    assert cells(summary).lines[1][3].endswith("(2 pairs)")
    assert any("share seed and partition in 2" in note for note in summary.notes)


def test_equal_partitions_of_different_data_are_not_paired(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / f"a{seed}", experiment(seed), 0.5)
        write_run(tmp_path / f"b{seed}", experiment(seed, **{"data.name": "cifar10"}), 0.9)
    summary = summarize([tmp_path])
    assert [row.difference for row in summary.rows] == [None, None]
    assert leader(summary.rows) == (summary.rows[1], (summary.rows[0],)), "nothing says that one method is better"
    assert any("accuracies are not comparable" in note for note in summary.notes)
    assert any("no seed, data and partition in common, and so no difference" in note for note in summary.notes)


def test_equal_seeds_on_different_partitions_are_not_paired(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment(), 0.5, digest="one")
    write_run(tmp_path / "b", experiment(**{"algorithm.prox_mu": 0.1}), 0.9, digest="two")
    rows = summarize([tmp_path]).rows
    assert paired_difference(rows[1], rows[0]) is None
    assert cells(summarize([tmp_path])).lines[1][3] == "–"


def test_only_a_row_that_differs_from_every_other_is_best(demo: Path) -> None:
    rows = summarize([demo]).rows
    assert leader(rows) == (rows[3], ())
    # FedAvg + FFC leads SphereFed before FFC by less than chance explains, though it clearly leads FedAvg.
    best, rivals = leader(rows[:3])
    assert best is rows[1]
    assert rivals == (rows[2],)
    assert rows[1].difference is not None
    assert rows[1].difference.excludes_zero


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9).filter(lambda values: np.ptp(values) > 1e-6))
def test_interval_agrees_with_scipy(values: list[float]) -> None:
    from scipy.stats import ttest_1samp

    found = estimate(values)
    wanted = ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert found.half_width == pytest.approx((wanted.high - wanted.low) / 2, rel=1e-6)


def test_a_repeated_seed_does_not_narrow_the_interval(demo: Path) -> None:
    before = summarize([demo])
    write_run(demo / "z-fedavg/again", experiment(3, calibration=FFC), 0.1, 0.1)
    after = summarize([demo])
    assert after.rows == before.rows
    assert [note for note in after.notes if "repeats z-fedavg/3" in note]


def test_an_unknown_accuracy_is_refused_with_the_known_names(demo: Path) -> None:
    with pytest.raises(RunError, match=re.escape(GLOBAL)):
        summarize([demo], accuracy="global_model/nothing")


@settings(deadline=None, max_examples=40)
@given(st.permutations([(kind, seed) for kind in ("fedavg", "prox", "sphere") for seed in range(3)]))
def test_groups_do_not_depend_on_the_order_of_runs(tmp_path_factory: pytest.TempPathFactory, order: list[Any]) -> None:
    from spherefed.report.run_files import read_runs

    root = tmp_path_factory.mktemp("runs")
    kinds: dict[str, dict[str, Any]] = {"fedavg": {}, "prox": {"algorithm.prox_mu": 0.1}, "sphere": SPHERE}
    for place, (kind, seed) in enumerate(order):
        write_run(root / f"{place}", experiment(seed, **kinds[kind]), 0.5, 0.6 if kind == "sphere" else None)
    groups, notes = group_runs(read_runs([root])[0])
    assert [group.labels["trained"] for group in groups] == ["FedAvg", "FedProx", "SphereFed before FFC"]
    assert [[run.seed for run in group.runs] for group in groups] == [[0, 1, 2]] * 3
    assert notes == ()


def with_measures(run: Path, recall: list[float | None]) -> Path:
    """Add measures to a run: this recall, its mean, and half of it as F1."""
    known = [value for value in recall if value is not None]
    found = {"balanced_accuracy": sum(known) / len(known), "macro_f1": sum(known) / len(known) / 2, "recall": recall}
    result = json.loads((run / "result.json").read_text())
    stages = {stage: {GLOBAL: found} for stage in result["accuracy"]}
    (run / "result.json").write_text(json.dumps(result | {"measures": stages}))
    (run / "dataset.json").write_text(json.dumps({"classes": ["cat", "dog", "eel"]}))
    return run


def test_a_table_is_of_the_metric_that_was_chosen(tmp_path: Path) -> None:
    with_measures(write_run(tmp_path / "one", experiment(0), 0.8), [0.9, 0.3, None])
    with_measures(write_run(tmp_path / "two", experiment(1), 0.7), [0.5, 0.1, None])
    expected = {
        "accuracy": (0.8, 0.7),
        "balanced-accuracy": (0.6, 0.3),
        "macro-f1": (0.3, 0.15),
        "recall:dog": (0.3, 0.1),
    }
    for metric, values in expected.items():
        summary = summarize([tmp_path], metric=metric)
        assert summary.rows[0].accuracies == pytest.approx(values)
        assert cells(summary).columns[2] == metric


def test_a_metric_that_a_run_does_not_have_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one", experiment(0), 0.8)
    with pytest.raises(ConfigError, match=r"unknown metric 'f1'.*allowed: accuracy, balanced-accuracy, macro-f1"):
        summarize([run], metric="f1")
    with pytest.raises(RunError, match=r"no macro-f1 for .*earlier version; run it again"):
        summarize([run], metric="macro-f1")
    with_measures(run, [0.9, 0.3, None])
    with pytest.raises(ConfigError, match=r"no class 'dgo' .*did you mean 'dog'"):
        summarize([run], metric="recall:dgo")
    with pytest.raises(ConfigError, match="no test example of class 'eel'"):
        summarize([run], metric="recall:eel")
