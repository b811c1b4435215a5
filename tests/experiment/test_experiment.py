"""Experiments: plain data in and out, settings by path, and the identity by which runs are compared."""

import json
from dataclasses import field, fields, make_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spherefed.api.inputs import with_changes
from spherefed.calibration import Ccvr, Ffc
from spherefed.client.corrections import Correction, Scaffold
from spherefed.client.personalization import LocalFfc
from spherefed.client.training import LocalTraining
from spherefed.data.partition import Dirichlet, Iid
from spherefed.errors import ConfigError, RunError
from spherefed.experiment import (
    Data,
    Experiment,
    Model,
    experiment_from_json,
    experiment_from_mapping,
    experiment_to_json,
    read_experiment,
    with_settings,
)
from spherefed.losses import CrossEntropy, MeanSquaredError
from spherefed.nn.encoders import Mlp
from spherefed.nn.heads import FixedRandom, Learned, Orthonormal
from spherefed.recipes.experiments import digits
from spherefed.runs import environment
from spherefed.runs.environment import NUMERICS_VERSION
from spherefed.runs.runner import run, run_to_end
from spherefed.schema import differences, from_plain, to_plain, with_path
from spherefed.server.algorithms import Algorithm, fedavgm
from spherefed.server.optimizers import ServerSgd
from spherefed.server.schedules import Constant, Cosine, MultiStep
from support.small import blobs, save_arrays, tiny


def positive(most: float = 1e6) -> st.SearchStrategy[float]:
    return st.floats(min_value=1e-9, max_value=most, allow_nan=False)


fractions = st.floats(min_value=0, max_value=1, exclude_max=True)
experiments = st.builds(
    Experiment,
    name=st.sampled_from(["x", "digits", "α-0.1", "a b"]),
    rounds=st.integers(1, 1000),
    seed=st.integers(0, 2**70),
    local=st.builds(
        LocalTraining,
        lr=positive(),
        epochs=st.integers(1, 99),
        batch_size=st.integers(1, 999),
        momentum=fractions,
        weight_decay=fractions,
    ),
    data=st.builds(Data, name=st.just("digits"), validation=fractions, held_out=fractions),
    partition=st.one_of(
        st.builds(Iid, clients=st.integers(5, 200)),
        st.builds(Dirichlet, alpha=positive(), clients=st.integers(5, 200), min_size=st.integers(0, 9)),
    ),
    model=st.builds(
        Model,
        encoder=st.builds(Mlp, widths=st.lists(st.integers(1, 512), min_size=1, max_size=4).map(tuple)),
        head=st.sampled_from([Learned(), FixedRandom(), Orthonormal()]),
        normalize=st.booleans(),
    ),
    loss=st.one_of(st.builds(CrossEntropy, scale=positive()), st.just(MeanSquaredError())),
    algorithm=st.builds(
        Algorithm,
        prox_mu=fractions,  # without normalized steps, which bound it by lr and momentum
        server=st.builds(ServerSgd, lr=positive(), momentum=fractions),
    ),
    schedule=st.one_of(
        st.just(Constant()),
        st.just(Cosine()),
        st.builds(MultiStep, every=st.integers(1, 99), gamma=st.floats(0.01, 1)),
    ),
    calibration=st.one_of(st.none(), st.builds(Ffc, ridge=fractions)),
    cohort=st.one_of(st.none(), st.integers(1, 5)),
    min_samples=st.integers(1, 50),
    evaluate_every=st.integers(1, 50),
)


@settings(max_examples=50)
@given(experiments)
def test_an_experiment_comes_back_from_json_as_it_was(experiment: Experiment) -> None:
    back = experiment_from_mapping(json.loads(json.dumps(to_plain(experiment))))
    assert back == experiment
    assert back.digest() == experiment.digest()


@settings(max_examples=30)
@given(experiments, experiments)
def test_digests_and_differences_tell_experiments_apart(a: Experiment, b: Experiment) -> None:
    assert (a.digest() == b.digest()) == (a == b)
    assert (differences(to_plain(a), to_plain(b)) == []) == (a == b)


UNKNOWN: list[tuple[str, str]] = [
    ("local.epoch=3", "epochs"),
    ("rouds=3", "rounds"),
    ("partition.alfa=3", "alpha"),
    ("model.heads=learned", "head"),
    ("model.head.kind=orthnormal", "orthonormal"),
    ("model.head=orthnormal", "orthonormal"),
    ("partition.kind=dirichlt", "dirichlet"),
    ("loss=msee", "mse"),
    ("calibration=fcc", "ffc"),
    ("calibration.kind=fcc", "ffc"),
    ("schedule=cosin", "cosine"),
    ("model.encoder=mpl", "mlp"),
    ("model.encoder.kind=mpl", "mlp"),
    ("algorithm.server=sgdd", "sgd"),
    ("algorithm.sever.lr=1.0", "server"),
]


@pytest.mark.parametrize(("setting", "meant"), UNKNOWN)
def test_an_unknown_name_is_refused_with_the_nearest_valid_one(setting: str, meant: str) -> None:
    start = tiny(partition=Dirichlet())
    with pytest.raises(ConfigError, match=f"did you mean '{meant}'"):
        with_settings(start, [setting])


@pytest.mark.parametrize(
    ("setting", "wants"),
    [
        ("rounds=3.0", "whole number"),
        ("rounds=true", "whole number"),
        ("rounds=many", "whole number"),
        ("rounds=none", "whole number"),
        ("rounds.deep=3", "whole number"),
        ("cohort=2.5", "whole number"),
        ("local.lr=fast", "a number"),
        ("local.lr=true", "a number"),
        ("local.lr=1" + "0" * 400, "a number"),
        ("name=3", "a text"),
        ("model.normalize=1", "true or false"),
        ("model.normalize=yes", "true or false"),
        ("model.encoder.widths=64", "a list"),
        ("model.encoder.widths=[64, 'a']", r"widths\[1\]"),
        ("local=0.1", "table"),
        ("local.kind=sgd", "unknown key 'local.kind'"),
        ("data.kind=digits", "unknown key 'data.kind'"),
        ("head=learned", "unknown key 'head'"),
        ("loss=3", "loss needs a kind, got 3; allowed: ce, mse"),
    ],
)
def test_a_mistyped_value_is_refused_with_what_is_wanted(setting: str, wants: str) -> None:
    with pytest.raises(ConfigError, match=wants):
        with_settings(tiny(), [setting])


@pytest.mark.parametrize("setting", ["local.lr", "=3", " = 3", "local.lr 0.5", ""])
def test_a_setting_without_path_and_value_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match="path=value"):
        with_settings(tiny(), [setting])


def test_settings_are_typed_as_in_toml_and_applied_in_turn() -> None:
    e = with_settings(
        tiny(), ["local.lr=0.25", "rounds = 7", 'name="seven"', "model.encoder.widths=[4, 5]", "local.lr=1", "cohort=2"]
    )
    assert (e.local.lr, e.rounds, e.name, e.model.encoder.widths, e.cohort) == (1.0, 7, "seven", (4, 5), 2)
    assert type(e.local.lr) is float
    assert (e.local.epochs, e.local.batch_size) == (2, 8)  # the rest stays


def test_a_value_may_hold_an_equals_sign() -> None:
    assert with_settings(tiny(), ["data.name=arrays:a=b.npz"]).data.name == "arrays:a=b.npz"


def test_a_kind_that_stands_after_other_fields_of_its_part_does_not_drop_them() -> None:
    begun = experiment_from_mapping({"name": "x", "rounds": 1, "local": {"lr": 0.1}})
    written = ["partition.clients=2", "rounds=3", "partition.kind=iid"]
    for order in (written, written[::-1], [*written[:2], "partition.kind=shards", written[2]]):
        changed = with_settings(begun, order)
        assert (changed.partition, changed.rounds) == (Iid(clients=2), 3)


def test_another_kind_starts_from_its_own_defaults_and_the_same_kind_keeps_its_fields() -> None:
    start = tiny(partition=Dirichlet(alpha=0.7, clients=33))
    assert with_settings(start, ["partition.kind=iid"]).partition == Iid()
    assert with_settings(start, ["partition.kind=dirichlet"]).partition == Dirichlet(alpha=0.7, clients=33)
    assert with_settings(start, ["partition.kind=iid", "partition.clients=5"]).partition == Iid(clients=5)
    assert with_settings(start, ["partition=iid", "partition.clients=5"]).partition == Iid(clients=5)
    assert with_settings(start, ["loss=ce", "loss.scale=20"]).loss == CrossEntropy(scale=20.0)


def test_what_may_be_absent_can_be_taken_away_and_put_back() -> None:
    start = tiny(calibration=Ffc(ridge=2.0), cohort=2)
    assert with_settings(start, ["calibration=none"]).calibration is None
    assert with_settings(start, ["cohort=none"]).cohort is None
    assert with_settings(start, ["calibration=none", "calibration=ffc"]).calibration == Ffc()
    assert with_settings(start, ["calibration=none", "calibration.kind=ffc", "calibration.ridge=3"]).calibration == Ffc(
        ridge=3.0
    )


def test_the_experiment_that_is_changed_stays_as_it_was() -> None:
    start = tiny()
    before = to_plain(start)
    with_settings(start, ["local.lr=9", "partition.kind=dirichlet"])
    assert to_plain(start) == before
    plain: dict[str, Any] = {"a": {"b": 1}}
    with_path(plain, "a.b", 2)
    assert plain == {"a": {"b": 1}}


def test_required_fields_are_asked_for_by_name() -> None:
    for missing in ("name", "rounds", "local"):
        plain = to_plain(tiny())
        del plain[missing]
        with pytest.raises(ConfigError, match=f"{missing} is required"):
            experiment_from_mapping(plain)
    with pytest.raises(ConfigError, match=r"local\.lr is required"):
        experiment_from_mapping({"name": "x", "rounds": 1, "local": {}})


@pytest.mark.parametrize(
    "wrong",
    [
        {"rounds": 0},
        {"seed": -1},
        {"name": ""},
        {"name": "a/b"},
        {"name": ".hidden"},
        {"cohort": 0},
        {"cohort": 5},
        {"min_samples": 0},
        {"evaluate_every": 0},
        {"data": {"held_out": 1.0}},
        {"data": {"validation": -0.1}},
        {"data": {"validation": float("nan")}},
        {"partition": {"kind": "iid", "clients": 0}},
        {"partition": {"kind": "dirichlet", "alpha": 0.0}},
        {"partition": {"kind": "dirichlet", "alpha": float("inf")}},
        {"partition": {"kind": "dirichlet", "min_size": -1}},
        {"model": {"encoder": {"kind": "mlp", "widths": []}}},
        {"model": {"encoder": {"kind": "mlp", "widths": [8, 0]}}},
        {"loss": {"kind": "ce", "scale": 0.0}},
        {"algorithm": {"prox_mu": -1.0}},
        {"algorithm": {"server": {"lr": 0.0}}},
        {"algorithm": {"server": {"momentum": 1.0}}},
    ],
)
def test_impossible_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        experiment_from_mapping(to_plain(tiny()) | wrong)


def test_an_experiment_is_read_alike_from_toml_json_and_a_folder(tmp_path: Path) -> None:
    toml = tmp_path / "e.toml"
    toml.write_text(
        """
        name = "tiny"
        rounds = 3
        stack = 0
        loss = "mse"
        calibration = { kind = "ffc" }
        partition = { kind = "iid", clients = 4 }
        [local]
        lr = 0.5
        epochs = 2
        batch_size = 8
        [model]
        encoder = { kind = "mlp", widths = [8] }
        head = "orthonormal"
        normalize = true
        """
    )
    (tmp_path / "experiment.json").write_text(json.dumps(to_plain(tiny())))
    assert read_experiment(toml) == tiny()
    assert read_experiment(tmp_path / "experiment.json") == tiny()
    assert read_experiment(tmp_path) == tiny()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("e.toml", b"rounds = = 3", "cannot be parsed"),
        ("e.json", b"{", "cannot be parsed"),
        ("e.json", b"[1, 2]", "table of fields"),
        ("e.json", b"\xff\xfe\x00", "not a text file"),
        ("e.toml", b"rouds = 3", "did you mean 'rounds'"),
    ],
)
def test_files_that_hold_no_experiment_are_refused_by_name(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=says) as caught:
        read_experiment(path)
    assert name in str(caught.value)


def test_files_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_experiment(tmp_path / "none.toml")


def test_differences_name_the_path_and_both_values() -> None:
    a, b = tiny(), with_settings(tiny(), ["local.lr=0.25", "loss=ce", "calibration=none"])
    lines = differences(to_plain(a), to_plain(b))
    assert "local.lr: 0.5 → 0.25" in lines
    assert "loss.kind: 'mse' → 'ce'" in lines
    assert any(line.startswith("calibration: ") and line.endswith("→ None") for line in lines)


# Identity


def test_a_new_field_leaves_the_digest_of_old_experiments_as_it_is() -> None:
    experiment = tiny(algorithm=fedavgm(0.3))
    extended = make_dataclass(
        "Experiment", [("patience", int, field(default=7))], bases=(Experiment,), frozen=True, kw_only=True
    )
    values = {f.name: getattr(experiment, f.name) for f in fields(Experiment)}
    same, other = extended(**values), extended(**values, patience=8)
    assert "patience" in to_plain(same)
    assert same.digest() == experiment.digest()
    assert other.digest() != experiment.digest()


def test_every_change_of_a_value_changes_the_digest() -> None:
    experiment = tiny()
    changed = [
        replace(experiment, rounds=4),
        replace(experiment, seed=1),
        replace(experiment, calibration=Ffc(ridge=0.1)),
        replace(experiment, calibration=None),
        replace(experiment, algorithm=fedavgm(0.3)),
        replace(experiment, local=replace(experiment.local, lr=0.25)),
    ]
    assert len({e.digest() for e in [experiment, *changed]}) == len(changed) + 1


def test_what_is_left_out_of_a_digest_is_the_default_when_it_is_read_again() -> None:
    experiment = tiny(algorithm=fedavgm(0.3), data=Data(name="digits", held_out=0.2), personalization=LocalFfc())
    assert experiment_from_json(json.dumps(to_plain(experiment, defaults=False))) == experiment
    assert experiment_from_json(experiment_to_json(experiment)) == experiment


def test_rounds_are_shared_unless_a_calibration_takes_part_in_them() -> None:
    plain, ridge = tiny(calibration=Ffc()), tiny(calibration=Ffc(ridge=1.0))
    assert plain.training_part() == ridge.training_part()
    between = [replace(e, calibrate_every=2) for e in (plain, ridge)]
    assert between[0].training_part() != between[1].training_part()


def test_rounds_of_another_version_of_the_numerics_are_not_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tiny(data=Data(name=save_arrays(tmp_path / "data.npz", blobs())))
    monkeypatch.setattr(environment, "NUMERICS_VERSION", NUMERICS_VERSION + 1)
    for _ in run(experiment, tmp_path / "run"):
        break
    with pytest.raises(RunError, match=f"version {NUMERICS_VERSION + 1} of the numerics"):
        run_to_end(experiment, tmp_path / "run", resume=True)


def test_a_table_keeps_the_defaults_of_the_field_that_it_is_in() -> None:
    made = with_settings(tiny(), ["calibration.kind=ccvr", "calibration.refit.epochs=1"])
    assert made.calibration == Ccvr(refit=replace(Ccvr().refit, epochs=1))


def test_a_drift_correction_is_weighed_as_published_unless_weights_are_given() -> None:
    published = {"scaffold": "clients", "feddyn": "clients", "moon": "examples"}
    for kind, weigh in published.items():
        settings = ["algorithm.prox_mu=0.1", f"algorithm.correction.kind={kind}"]
        assert with_settings(digits(), settings).algorithm.weigh == weigh
        for own in ("clients", "examples"):
            assert with_settings(digits(), [*settings, f"algorithm.weigh={own}"]).algorithm.weigh == own
        plain = to_plain(digits()) | {"algorithm": {"correction": kind, "prox_mu": 0.1}}
        assert experiment_from_mapping(plain).algorithm.weigh == weigh
        assert with_changes(digits(), {"algorithm": plain["algorithm"]}).algorithm.weigh == weigh
        assert Algorithm(correction=from_plain(Correction, kind), prox_mu=0.1).weigh == weigh
        unset = to_plain(digits()) | {"algorithm": {"correction": kind, "prox_mu": 0.1, "weigh": "none"}}
        assert experiment_from_mapping(unset).algorithm.weigh == weigh
    scaffold = with_settings(digits(), ["algorithm.correction.kind=scaffold"])
    assert with_settings(scaffold, ["local.lr=0.5"]).algorithm.weigh == "clients"
    assert with_settings(scaffold, ["algorithm.correction=none"]).algorithm == digits().algorithm
    weighed = with_settings(scaffold, ["algorithm.weigh=examples"])
    assert experiment_from_mapping(to_plain(weighed)) == weighed
    assert replace(digits(), algorithm=Algorithm(correction=Scaffold())) == scaffold


def test_weights_as_published_leave_the_digests_of_earlier_versions() -> None:
    by_clients = Algorithm(correction=Scaffold())
    assert to_plain(by_clients, defaults=False) == {"weigh": "clients", "correction": {"kind": "scaffold"}}
    by_examples = Algorithm(correction=Scaffold(), weigh="examples")
    assert to_plain(by_examples, defaults=False) == {"correction": {"kind": "scaffold"}}
    assert to_plain(Algorithm(), defaults=False) == to_plain(Algorithm(weigh="examples"), defaults=False) == {}
