"""Names of methods: they say what was done, and different experiments have different names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spherefed.report import summarize
from spherefed.report.method_names import distinguish, stage_names
from spherefed.schema import differences
from support.known_runs import FFC, SPHERE, experiment, write_run


@pytest.mark.parametrize(
    ("changes", "trained", "calibrated"),
    [
        ({"calibration": FFC}, "FedAvg", "FedAvg + FFC"),
        ({"calibration": {"kind": "ccvr"}}, "FedAvg", "FedAvg + CCVR"),
        ({"algorithm.prox_mu": 0.01, "calibration": FFC}, "FedProx", "FedProx + FFC"),
        ({"algorithm.normalize_steps": True, "calibration": FFC}, "FedNova", "FedNova + FFC"),
        (
            {"algorithm.server.momentum": 0.9, "calibration": FFC},
            "FedOpt (sgd momentum)",
            "FedOpt (sgd momentum) + FFC",
        ),
        ({"algorithm.server.kind": "yogi", "calibration": FFC}, "FedYogi", "FedYogi + FFC"),
        ({"model.head.kind": "random", "calibration": FFC}, "FedAvg + BABU", "FedAvg + BABU + FFC"),
        (SPHERE, "SphereFed before FFC", "SphereFed"),
        (SPHERE | {"algorithm.prox_mu": 0.01}, "FedProx + SphereFed before FFC", "FedProx + SphereFed"),
        (
            {"model.head.kind": "orthonormal", "loss.kind": "mse", "calibration": FFC},
            "FedAvg, mse, orthonormal head",
            "FedAvg, mse, orthonormal head + FFC",
        ),
        ({"model.normalize": True, "calibration": FFC}, "FedAvg, unit features", "FedAvg, unit features + FFC"),
    ],
)
def test_names_say_what_was_done(changes: Mapping[str, Any], trained: str, calibrated: str) -> None:
    assert stage_names(experiment(**changes)) == (trained, calibrated)


def test_a_name_is_printable_whatever_the_file_of_a_run_says() -> None:
    kind = "sgd\x1b]0;owned\x07\x1b[2J"
    hostile = experiment(**{"algorithm.server.kind": kind, "loss.kind": kind, "seed": 1, "calibration": {"kind": kind}})
    assert all(name.isprintable() for name in stage_names(hostile))
    assert all(name.isprintable() for name in distinguish("x", [hostile, experiment(**{"loss.kind": "a\x9b2J"})]))


def test_equal_names_say_what_differs(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment(calibration=FFC), 0.8, 0.9)
    write_run(tmp_path / "b", experiment(**{"local.lr": 0.5}), 0.7)
    labels = [row.label for row in summarize([tmp_path]).rows]
    # The calibrated row has its name to itself.
    assert labels == [
        "FedAvg (local.lr 0.1)",
        "FedAvg + FFC",
        "FedAvg (local.lr 0.5)",
    ]


def test_digests_and_stacks_are_left_out_of_names_that_other_fields_tell_apart() -> None:
    encoders = [{"kind": "in-memory", "sha256": digit * 64} for digit in "ab"]
    several = [
        experiment(**{"local.lr": lr, "stack": stack, "model.encoder": encoder})
        for lr, stack, encoder in zip((0.1, 0.5), (0, 10), encoders, strict=True)
    ]
    assert distinguish("FedAvg", several) == ["FedAvg (local.lr 0.1)", "FedAvg (local.lr 0.5)"]
    alike = [experiment(**{"model.encoder": encoder}) for encoder in encoders]
    assert distinguish("FedAvg", alike) == [f"FedAvg (model.encoder.sha256 {digit * 12})" for digit in "ab"]


def test_experiments_that_differ_in_many_fields_are_named_by_their_folders(tmp_path: Path) -> None:
    several: dict[str, dict[str, Any]] = {
        "one": {},
        "two": {"local.lr": 0.5, "local.epochs": 1, "local.batch_size": 8, "rounds": 9, "partition.alpha": 1.0},
        "three": {"local.momentum": 0.0, "data.name": "cifar100", "partition.clients": 7},
    }
    for folder, changes in several.items():
        for seed in range(2):
            write_run(tmp_path / folder / f"seed-{seed}", experiment(seed, **changes), 0.8)
    labels = [row.label for row in summarize([tmp_path]).rows]
    assert sorted(labels) == ["FedAvg (one)", "FedAvg (three)", "FedAvg (two)"]


changed = st.fixed_dictionaries(
    {},
    optional={
        "stack": st.sampled_from([0, 10]),
        "name": st.sampled_from(["digits", "other"]),
        "local.lr": st.sampled_from([0.1, 0.5]),
        "algorithm.prox_mu": st.sampled_from([0.0, 0.1, 1.0]),
        "algorithm.server.kind": st.sampled_from(["sgd", "adam"]),
        "model.head.kind": st.sampled_from(["learned", "orthonormal", "random"]),
        "loss.kind": st.sampled_from(["ce", "mse"]),
        "calibration": st.sampled_from([None, FFC, {"kind": "ffc", "ridge": 1.0}, {"kind": "ccvr"}]),
    },
)


@settings(deadline=None)
@given(st.lists(changed, min_size=2, max_size=6))
def test_names_of_different_experiments_differ(several: list[dict[str, Any]]) -> None:
    distinct: list[dict[str, Any]] = []
    for plain in (experiment(**changes) for changes in several):
        if all(differences(plain, known) for known in distinct):
            distinct.append(plain)
    names = distinguish("FedAvg", distinct)
    assert len(set(names)) == len(distinct)
