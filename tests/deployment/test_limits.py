"""A site keeps to its own limits, whatever the server asks, and remembers what it has answered."""

import json
import logging
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spherefed.assembly import build_classifier
from spherefed.deployment import site as site_module
from spherefed.deployment.folder import SITE_TOML, read_site, write_site
from spherefed.deployment.handshake import Handshake
from spherefed.deployment.limits import SiteLimits, check_size
from spherefed.deployment.record import SiteRecord, read_record
from spherefed.deployment.roles import _node_config
from spherefed.deployment.site_config import Site
from spherefed.errors import ConfigError, SpherefedError
from spherefed.experiment import experiment_from_mapping
from spherefed.messages import EvaluateReply
from spherefed.nn.encoders import BuiltInEncoder, InMemoryEncoder
from spherefed.schema import built_in_kinds

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ANSWERED = 3
"""Requests of the table that a site answers, without revealing an example."""


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The table of requests of a hostile server, in a process that has answered nothing yet."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import hostile_server

    monkeypatch.setattr(site_module, "_SESSIONS", {})
    return hostile_server


@pytest.mark.slow
def test_no_request_of_a_hostile_server_exceeds_the_limits(table: Any) -> None:
    outcomes = {name: table.outcome(attack) for name, attack in table.ATTACKS.items()}
    answered = {name: said for name, said in outcomes.items() if not said.startswith("refused: ")}
    assert len(answered) == ANSWERED, answered
    assert len(outcomes) >= 30
    assert answered.pop("statistics of a class with 3 examples").endswith("that column of U is 0")
    assert set(answered.values()) == {"answers; V₁ − V₂ = 0"}


def test_without_a_hold_out_of_its_own_two_statistics_would_give_back_an_image(table: Any) -> None:
    assert table.in_a_simulation() > 0.999999


def test_statistics_are_of_the_kept_examples_of_frequent_classes(table: Any, tmp_path: Path) -> None:
    """V and U by numpy, from the file, the stored seed and nothing else."""
    victim = table.Victim(tmp_path)
    plain = table.to_plain(table.pixels(0.7))  # the site's fraction counts, not this one
    found = victim.statistics(plain)
    with np.load(tmp_path / "own.npz") as stored:
        images, labels = stored["images"].reshape(table.NUM_IMAGES, -1).astype(np.float64), stored["labels"]
    session = site_module._session(json.dumps(plain), "1", victim.site)
    pooled = session.assembly.dataset.train.inputs.reshape(table.NUM_IMAGES, -1).double().numpy()
    order = [int(np.flatnonzero((images == row).all(axis=1))[0]) for row in pooled]
    kept_out = json.loads((tmp_path / "record.json").read_text())["hold_out"]
    assert kept_out["fraction"] == 0.2
    assert len(session.client.held_out) == table.NUM_IMAGES // 5
    kept = [order[position] for position in session.client.examples.indices.tolist()]
    held_out = [order[position] for position in session.client.held_out.indices.tolist()]
    assert sorted([*kept, *held_out]) == list(range(table.NUM_IMAGES))
    rows = [row for row in kept if np.sum(labels[kept] == labels[row]) >= 5]
    assert session.left_out == len(kept) - len(rows) > 0
    unit = images[rows] / np.linalg.norm(images[rows], axis=1, keepdims=True)
    assert found.num_examples == len(rows)
    assert np.allclose(found.gram().numpy(), unit.T @ unit, atol=1e-3)
    assert np.allclose(found.cross().numpy(), unit.T @ np.eye(10)[labels[rows]], atol=1e-3)


def test_another_process_has_the_same_hold_out_and_counts_on(
    table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = table.Victim(tmp_path, limits=SiteLimits(max_measures=2))
    first = victim.statistics(table.asking_for())
    monkeypatch.setattr(site_module, "_SESSIONS", {})
    assert victim.statistics(table.asking_for(seed=0)) == first  # an equal request counts once
    victim.statistics(table.asking_for(), factor=2.0)
    monkeypatch.setattr(site_module, "_SESSIONS", {})
    with pytest.raises(ConfigError, match=r"2 different statistics .* at most 2 \(limits.max_measures"):
        victim.statistics(table.asking_for(), factor=3.0)
    assert victim.statistics(table.asking_for()) == first
    assert stat.S_IMODE((tmp_path / "record.json").stat().st_mode) == 0o600


def test_changed_data_have_a_budget_of_their_own(table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = table.Victim(tmp_path, limits=SiteLimits(max_measures=1))
    victim.statistics(table.asking_for())
    with pytest.raises(ConfigError, match="at most 1"):
        victim.statistics(table.asking_for(), factor=2.0)
    with np.load(tmp_path / "own.npz") as stored:
        np.savez(tmp_path / "own.npz", images=stored["images"][:-40], labels=stored["labels"][:-40])
    monkeypatch.setattr(site_module, "_SESSIONS", {})
    victim.statistics(table.asking_for(), factor=2.0)


@pytest.mark.parametrize(("num_images", "allowed"), [(64, True), (63, False)])
def test_two_examples_for_each_feature_are_enough(num_images: int, allowed: bool, table: Any, tmp_path: Path) -> None:
    victim = table.Victim(tmp_path, held_out=0.0)
    with np.load(tmp_path / "own.npz") as stored:
        few = np.concatenate([np.flatnonzero(stored["labels"] == label)[:32] for label in (0, 1)])[:num_images]
        np.savez(tmp_path / "own.npz", images=stored["images"][few], labels=stored["labels"][few])
    plain = table.asking_for(min_samples=1)  # the experiment's own minimum changes nothing
    if allowed:
        assert victim.statistics(plain).num_examples == num_images
    else:
        with pytest.raises(SpherefedError, match="32 features need at least 64 examples, this site has 63"):
            victim.statistics(plain)


def test_a_lost_client_state_is_an_error_and_no_fresh_start(tmp_path: Path) -> None:
    import shutil

    from spherefed.assembly import assemble
    from spherefed.errors import RunError
    from spherefed.experiment import experiment_to_json
    from spherefed.messages import Train, TrainReply
    from support.methods_on_digits import rep

    experiment = rep()
    text, model = experiment_to_json(experiment), assemble(experiment).initial()
    paths = {"client_state": str(tmp_path / "state"), "record": str(tmp_path / "record.json")}
    site = Site(client=0, data="digits", **paths)
    for _ in range(2):  # a repeated request is answered again
        assert isinstance(site_module.answer(Train(0, model, 0.1), text, "1", site), TrainReply)
    assert isinstance(site_module.answer(Train(1, model, 0.1), text, "1", site), TrainReply)
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(RunError, match="the state of client 0, which trained in round 1, is missing"):
        site_module.answer(Train(2, model, 0.1), text, "1", site)


def test_a_record_that_cannot_be_read_is_not_replaced(table: Any, tmp_path: Path) -> None:
    victim = table.Victim(tmp_path)
    for content in ("", "{}", '{"hold_out": 3, "measures": {}, "trainings": {}}', "[]"):
        (tmp_path / "record.json").write_text(content)
        with pytest.raises(ConfigError, match=r"record\.json cannot be read"):
            victim.statistics(table.asking_for())
        assert (tmp_path / "record.json").read_text() == content


def test_another_fraction_than_before_is_refused(table: Any, tmp_path: Path) -> None:
    victim = table.Victim(tmp_path)
    victim.statistics(table.asking_for())
    victim.site = replace(victim.site, held_out=0.21)
    with pytest.raises(ConfigError, match=r"held_out is 0.21 in site.toml, but 0.2 was used before"):
        victim.statistics(table.asking_for())


def test_own_data_need_a_record(table: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs record = FILE"):
        table.Victim(tmp_path, record="").statistics(table.asking_for())


@pytest.mark.parametrize("head", ["learned", "ridge-start"])
def test_a_head_whose_start_is_computed_from_statistics_needs_their_calibration(
    head: str, table: Any, tmp_path: Path
) -> None:
    """Before round 0, `ridge-start` asks for V and U as calibration `ffc-gcv` does."""
    plain = table.asking_for(calibration={"kind": "ncm"}, model__head=head, loss="ce")
    victim = table.Victim(tmp_path, limits=SiteLimits(calibrations=("ncm",)))
    if head == "learned":
        victim.ask(Handshake(), plain)
    else:
        with pytest.raises(ConfigError, match="calibration 'ffc-gcv' is not allowed here"):
            victim.ask(Handshake(), plain)


def test_hold_outs_of_two_sites_differ_and_a_new_record_is_empty(tmp_path: Path) -> None:
    first, second = (read_record(tmp_path / name).stored_hold_out(0.2) for name in ("a.json", "b.json"))
    assert first.seed != second.seed
    assert read_record(tmp_path / "a.json") == SiteRecord(tmp_path / "a.json", first)


def test_everything_refused_is_one_line_of_json_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from spherefed.deployment.server import RunRequest, serve
    from spherefed.experiment import experiment_to_json
    from support.in_process_grid import InProcessGrid
    from support.methods_on_digits import spherefed

    experiment = spherefed(quorum=0.5, rounds=1)
    low = json.dumps({"min_samples_per_feature": 0, "min_samples_per_class": 1})
    strict = json.dumps({"min_samples_per_feature": 100})
    configs = [{"client": k, "site": f"s{k}", "data": "digits", "limits": strict if k == 2 else low} for k in range(4)]
    text = experiment_to_json(experiment)
    with caplog.at_level(logging.WARNING, "spherefed.site"):
        for _ in serve(
            InProcessGrid(configs, {"experiment": text}).open,
            RunRequest(experiment=text, out=str(tmp_path / "run"), wait=0),
        ):
            pass
    (line,) = [json.loads(record.getMessage()) for record in caplog.records if record.name == "spherefed.site"]
    assert (line["event"], line["site"], line["client"], line["request"]) == ("rejected", "s2", 2, "query.measure")
    assert "need at least 1600 examples" in line["cause"]
    (rejected,) = [json.loads(text) for text in (tmp_path / "run" / "rejections.jsonl").read_text().splitlines()]
    assert rejected["client"] == 2
    assert "need at least 1600 examples" in rejected["cause"]


def test_site_toml_reaches_the_client_app_whole(tmp_path: Path) -> None:
    import tomllib

    from spherefed.deployment.folder import SiteFolder

    limits = SiteLimits(max_rounds=7, min_samples_per_feature=1.5, calibrations=("ffc", "mine:Own"))
    folder = SiteFolder(server="x:1", client=3, site="a", allow=("mine:Own", "other:X"), held_out=0.25, limits=limits)
    write_site(tmp_path, folder, authority=None)
    assert "[limits]\nmax_rounds = 7\n" in (tmp_path / SITE_TOML).read_text()
    site = Site.from_config(tomllib.loads(_node_config(read_site(tmp_path))))
    assert site.limits == limits
    assert (site.client, site.held_out, site.record) == (3, 0.25, str(tmp_path / "record.json"))
    assert site.allowed == {"mine:Own", "other:X"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[limits]\nmax_round = 3", "did you mean 'max_rounds'"),
        ("[limits]\nmin_samples = 0", "min_samples must be at least 1"),
        ("[limits]\nmin_samples_per_feature = nan", "min_samples_per_feature must be at least 0"),
        ("held_out = 1.0", r"held_out must be in \[0, 1\)"),
    ],
)
def test_wrong_limits_are_named(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / SITE_TOML).write_text(f'server = "x:1"\nclient = 0\nsite = "a"\n{content}\n')
    with pytest.raises(ConfigError, match=message):
        read_site(tmp_path)


@pytest.mark.parametrize("kind", sorted(set(built_in_kinds(BuiltInEncoder)) - {InMemoryEncoder.kind}))
def test_the_size_of_a_built_in_encoder_is_known_before_it_is_built(kind: str, table: Any) -> None:
    if kind == "efficientnet-lite0":
        pytest.importorskip("efficientnet_lite_pytorch")
    experiment = experiment_from_mapping(
        table.asking_for(model__encoder=kind, model__head="learned", model__normalize=False)
    )
    with torch.no_grad():
        state = build_classifier(experiment, (3, 32, 32), 10).state_dict()
    actual = sum(tensor.numel() for tensor in state.values())
    check_size(experiment, (3, 32, 32), "float32", 10, actual)
    with pytest.raises(ConfigError, match=f"parameters is {actual}; this site allows at most {actual - 1}"):
        check_size(experiment, (3, 32, 32), "float32", 10, actual - 1)


def test_an_evaluation_with_few_examples_of_a_class_tells_no_counts_of_classes() -> None:
    counts = torch.tensor([[4, 1, 0], [5, 2, 0], [6, 1, 0]])
    reply = EvaluateReply(0, 3, 7, 5, {"counts": counts})
    assert site_module.without_rare_classes(reply, 2) is reply  # a class without examples tells nothing
    kept = site_module.without_rare_classes(reply, 3)
    assert isinstance(kept, EvaluateReply)
    assert (kept.correct, kept.num_examples, kept.classes) == (5, 7, {})
