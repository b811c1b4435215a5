"""Folders of known runs for the tests of reports: a comparison, and runs of every kind together."""

from pathlib import Path

from support.known_runs import (
    FEDAVG_CALIBRATED,
    FEDAVG_TRAINED,
    FFC,
    SPHERE,
    SPHERE_CALIBRATED,
    SPHERE_TRAINED,
    experiment,
    write_personal_run,
    write_run,
)


def write_demo(root: Path) -> Path:
    for seed in range(5):
        fedavg = experiment(seed, calibration=FFC)
        counts = {"trained": [[8, 2], [1, 9 - seed]], "calibrated": [[9, 1], [0, 10 - seed]]}
        known = {"confusion": counts, "spectrum": [1e-9, 0.5, 3.0, 12.0]}
        write_run(root / f"z-fedavg/{seed}", fedavg, FEDAVG_TRAINED[seed], FEDAVG_CALIBRATED[seed], **known)
        sphere = experiment(seed, **SPHERE)
        write_run(root / f"a-sphere/{seed}", sphere, SPHERE_TRAINED[seed], SPHERE_CALIBRATED[seed])
    return root


def write_mixed(root: Path) -> Path:
    local = "global_model/local_test/by_clients"
    for seed in range(2):
        write_run(root / f"fedavg/{seed}", experiment(seed), 0.8)
        for kind, values in (("fine-tune", [0.9, 0.7, 1.0]), ("local-ffc", [0.8, 0.6, 0.7])):
            plain = experiment(seed, **{"personalization": {"kind": kind}, "data.held_out": 0.15})
            write_personal_run(root / f"{kind}/{seed}", plain, values)
    deployed = experiment(partition={"kind": "sites", "clients": 3}, **{"data.held_out": 0.2})
    write_run(
        root / "deployed", deployed, 0.7, counts=((0, 0),) * 3, sites=("north", "east", "west"),
        missing_since={2: 1}, changes={"accuracy": {"trained": {local: 0.7}}},
        rejections=[{"round": 1, "client": 2, "cause": "the node of west is not connected"}],
    )  # fmt: skip
    return root
