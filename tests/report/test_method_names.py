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


changed = st.fixed_dictionaries(
    {},
    optional={
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
