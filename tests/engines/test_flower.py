"""The federation through Flower's apps and our codec, in one process: same bits as the local engine, whatever fails."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from spherefed.client.evaluation import GLOBAL_TEST, LOCAL_TEST_BY_CLIENTS, LOCAL_TEST_BY_SAMPLES
from spherefed.deployment import membership
from spherefed.deployment import site as site_module
from spherefed.deployment.app import MESSAGE_TYPES, REPLY_TYPES
from spherefed.deployment.handshake import DerivedLoaded, Handshake, HandshakeReply
from spherefed.deployment.server import RunRequest, serve
from spherefed.deployment.site import Site
from spherefed.engines.flower_codec import MESSAGE, SAFETENSORS, TENSORS, decode, encode
from spherefed.errors import ConfigError, FederationError, RunError
from spherefed.experiment import Data, Experiment, experiment_to_json, read_experiment
from spherefed.messages import Evaluate, Failure, ModelState, Train, TrainReply
from spherefed.nn.encoders import Mlp
from spherefed.runs.directory import RunDirectory, read_json
from spherefed.runs.round_log import read_lines
from spherefed.runs.runner import run, run_to_end
from support.in_process_grid import InProcessGrid, Spoil
from support.methods_on_digits import nova_ccvr, one_shot, rep, ridge_start, spherefed, without_clients

CLIENTS = 4
LOW = json.dumps({"min_samples_per_feature": 0, "min_samples_per_class": 1, "calibrations": ["ffc", "ffc-gcv", "ccvr"]})
"""Limits like those of a simulation."""


def run_request(experiment: Experiment, out: Path, **changes: Any) -> RunRequest:
    return RunRequest(experiment=experiment_to_json(experiment), out=str(out), wait=0.0, **changes)


def grid_for(experiment: Experiment, tmp_path: Path, **config: Any) -> InProcessGrid:
    configs = [
        {
            "client": client,
            "site": f"site-{client}",
            "data": "digits",
            "client_state": str(tmp_path / f"memory-{client}"),
            "limits": LOW,
            **config,
        }
        for client in range(CLIENTS)
    ]
    return InProcessGrid(configs, {"experiment": experiment_to_json(experiment)})


def through_flower(experiment: Experiment, tmp_path: Path, grid: InProcessGrid | None = None) -> dict[str, Any]:
    out = tmp_path / "flower"
    for _ in serve((grid or grid_for(experiment, tmp_path)).open, run_request(experiment, out)):
        pass
    return RunDirectory(out).result()


@pytest.mark.slow
@pytest.mark.parametrize("make", [spherefed, nova_ccvr, rep, one_shot, ridge_start])
def test_the_same_bits_as_the_local_engine(
    make: Callable[[], Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPHEREFED_DATA", str(tmp_path / "data-root"))
    experiment = make()
    local, flower = run_to_end(experiment, tmp_path / "local"), through_flower(experiment, tmp_path)
    for name in ("weights_sha256", "statistics_sha256", "accuracy"):
        assert flower[name] == local[name], name
    assert [line["loss"] for line in read_lines(tmp_path / "flower" / "rounds.jsonl")] == [
        line["loss"] for line in read_lines(tmp_path / "local" / "rounds.jsonl")
    ]
    assert (flower["statistics_sha256"] is None) == (experiment.calibration is None)


def test_where_nobody_says_sites_train_one_by_one(tmp_path: Path) -> None:
    flower = through_flower(spherefed(stack=None), tmp_path)
    assert read_experiment(tmp_path / "flower").stack == 0
    assert flower["weights_sha256"] == run_to_end(spherefed(stack=0), tmp_path / "local")["weights_sha256"]


def test_the_fixed_head_is_never_sent_and_few_messages_are(tmp_path: Path) -> None:
    experiment = spherefed()
    grid = grid_for(experiment, tmp_path)
    local, flower = run_to_end(experiment, tmp_path / "local"), through_flower(experiment, tmp_path, grid)
    assert flower["traffic"] == local["traffic"]
    kinds = [kind for node, kind in grid.asked if node == 101]
    assert kinds == ["query.handshake", "train", "train", "train", "query.measure"]


# Faults: whatever a node sends, the result is that of the others, to the bit, and rejections.jsonl names it.


def nan_values(question: Message, answer: Message) -> Message:
    reply = decode(answer.content, REPLY_TYPES)
    if isinstance(reply, TrainReply):
        spoilt = {name: torch.full_like(tensor, float("nan")) for name, tensor in reply.delta.items()}
        return Message(encode(replace(reply, delta=spoilt)), reply_to=question)
    return Message(encode(Failure(reply.client, "gone")), reply_to=question)


def wrong_shapes(question: Message, answer: Message) -> Message:
    reply = decode(answer.content, REPLY_TYPES)
    if isinstance(reply, TrainReply):
        longer = {name: torch.cat([tensor, tensor]) for name, tensor in reply.delta.items()}
        return Message(encode(replace(reply, delta=longer)), reply_to=question)
    return Message(encode(Failure(reply.client, "gone")), reply_to=question)


def extra_keys(question: Message, answer: Message) -> Message:
    content = answer.content
    fields = json.loads(str(content[MESSAGE]["fields"]))
    content[MESSAGE]["fields"] = json.dumps(fields | {"surprise": 1})
    return Message(content, reply_to=question)


def another_client(question: Message, answer: Message) -> Message:
    return Message(encode(replace(decode(answer.content, REPLY_TYPES), client=0)), reply_to=question)


def garbage(question: Message, answer: Message) -> Message:
    nothing = Array("uint8", (3,), SAFETENSORS, b"abc")
    return Message(RecordDict({TENSORS: ArrayRecord({"x": nothing})}), reply_to=question)


def pickled(question: Message, answer: Message) -> Message:
    content = answer.content
    content[TENSORS] = ArrayRecord({SAFETENSORS: Array(np.zeros(3))})
    del content[MESSAGE][SAFETENSORS]
    return Message(content, reply_to=question)


def fields_of(**claims: Any) -> Spoil:
    """The answer with other claims."""

    def claiming(question: Message, answer: Message) -> Message:
        content = answer.content
        fields = json.loads(str(content[MESSAGE]["fields"]))
        content[MESSAGE]["fields"] = json.dumps(fields | {n: v for n, v in claims.items() if n in fields})
        return Message(content, reply_to=question)

    return claiming


def deep(question: Message, answer: Message) -> Message:
    answer.content[MESSAGE]["fields"] = "[" * 100_000
    return Message(answer.content, reply_to=question)


def another_kind(question: Message, answer: Message) -> Message:
    return Message(encode(DerivedLoaded(2, "x")), reply_to=question)


def raising(question: Message, answer: Message) -> Message:
    return Message(encode(Failure(-1, "RuntimeError: a bug at the site")), reply_to=question)


def silent(question: Message, answer: Message) -> None:
    return None


def replay() -> Spoil:
    """Always the answer to its first training again."""
    first: list[Message] = []

    def again(question: Message, answer: Message) -> Message:
        reply = decode(answer.content, REPLY_TYPES)
        if isinstance(reply, TrainReply) and reply.round > 0:
            return Message(first[0].content, reply_to=question)
        if isinstance(reply, TrainReply):
            first.append(answer)
            return raising(question, answer)
        return Message(first[0].content, reply_to=question)

    return again


FAULTS: dict[str, tuple[Callable[[], Spoil], str]] = {
    "nan": (lambda: nan_values, "not finite"),
    "wrong shapes": (lambda: wrong_shapes, "has shape"),
    "extra keys": (lambda: extra_keys, "malformed reply: .*surprise"),
    "another client's name": (lambda: another_client, "answered as client 0"),
    "garbage": (lambda: garbage, "malformed reply"),
    "numpy in place of safetensors": (lambda: pickled, "malformed reply"),
    "nested without end": (lambda: deep, "malformed reply"),
    "another kind of answer": (lambda: another_kind, "answered with a DerivedLoaded"),
    "more examples than there can be": (lambda: fields_of(num_examples=10**39), "claims 1000"),
    "a loss that is no number": (lambda: fields_of(loss=10**400, num_examples=-1), "malformed reply|claims -1"),
    "hardly a step": (lambda: fields_of(effective_steps=1e-320, num_examples=-1), "effective steps|claims -1"),
    "raises": (lambda: raising, "a bug at the site"),
    "replay": (replay, "answered round 0 in round"),
    "silence": (lambda: silent, "did not answer within"),
}


LOST = 2


@pytest.fixture(scope="module")
def without_lost(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the local engine makes of two rounds without the faulty site."""
    return without_clients(spherefed(rounds=2), {LOST}, tmp_path_factory.mktemp("without") / "local")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_site_changes_nothing_for_the_others(fault: str, without_lost: dict[str, Any], tmp_path: Path) -> None:
    make, cause = FAULTS[fault]
    experiment = spherefed(rounds=2, **({"deadline": 0.4} if fault == "silence" else {}))
    grid = grid_for(experiment, tmp_path)
    spoil = make()
    after_handshake: Spoil = lambda q, a: a if q.metadata.message_type == "query.handshake" else spoil(q, a)  # noqa: E731
    grid.spoil[101 + LOST] = after_handshake
    flower = through_flower(experiment, tmp_path, grid)
    assert flower["weights_sha256"] == without_lost["weights_sha256"]
    assert flower["statistics_sha256"] == without_lost["statistics_sha256"]
    rejections = read_lines(tmp_path / "flower" / "rejections.jsonl")
    assert {line["client"] for line in rejections} == {LOST}
    assert {line["round"] for line in rejections} >= {0, 1}
    assert any(re.search(cause, line["cause"]) for line in rejections), rejections


def test_a_node_that_goes_and_comes_back_under_another_number_is_asked_who_it_is(tmp_path: Path) -> None:
    experiment = spherefed()
    grid = grid_for(experiment, tmp_path)
    rounds = serve(grid.open, run_request(experiment, tmp_path / "flower"))
    next(rounds)
    grid.offline.add(103)
    next(rounds)
    grid.contexts[999] = replace_node(grid.contexts[103], 999)
    for _ in rounds:
        pass
    lines = read_lines(tmp_path / "flower" / "rounds.jsonl")
    assert [line["clients"] for line in lines] == [[0, 1, 2, 3], [0, 1, 3], [0, 1, 2, 3]]
    assert [line["cause"] for line in read_lines(tmp_path / "flower" / "rejections.jsonl")] == [
        "the node of site 'site-2' (client 2) is not connected"
    ]
    assert [kind for node, kind in grid.asked if node == 999] == ["query.handshake", "train", "query.measure"]


def test_a_node_that_comes_back_otherwise_is_not_taken_for_the_one_that_went(tmp_path: Path) -> None:
    experiment = spherefed()
    grid = grid_for(experiment, tmp_path)
    rounds = serve(grid.open, run_request(experiment, tmp_path / "flower"))
    next(rounds)
    grid.offline.add(103)
    next(rounds)
    grid.offline.clear()
    grid.spoil[103] = another_release
    for _ in rounds:
        pass
    lines = read_lines(tmp_path / "flower" / "rounds.jsonl")
    assert [line["clients"] for line in lines] == [[0, 1, 2, 3], [0, 1, 3], [0, 1, 3]]
    causes = [line["cause"] for line in read_lines(tmp_path / "flower" / "rejections.jsonl")]
    assert "not connected" in causes[0]
    assert "package version is 9.9" in causes[1]


def test_a_site_that_is_back_before_it_was_missed_waits_for_its_place(tmp_path: Path) -> None:
    """Flower lists a dead node for a minute: until then its successor is one too many."""
    experiment = spherefed(deadline=0.4)
    grid = grid_for(experiment, tmp_path)
    rounds = serve(grid.open, run_request(experiment, tmp_path / "flower"))
    next(rounds)
    grid.contexts[999] = replace_node(grid.contexts[103], 999)
    grid.spoil[103] = silent  # dead, and still listed
    next(rounds)
    grid.offline.add(103)
    for _ in rounds:
        pass
    lines = read_lines(tmp_path / "flower" / "rounds.jsonl")
    assert [line["clients"] for line in lines] == [[0, 1, 2, 3], [0, 1, 3], [0, 1, 2, 3]]
    assert [kind for node, kind in grid.asked if node == 999] == ["query.handshake", "train", "query.measure"]


def replace_node(context: Any, node: int) -> Any:
    from flwr.app import Context

    return Context(
        run_id=1,
        node_id=node,
        node_config=context.node_config,
        state=RecordDict(),
        run_config=context.run_config,
        series_id=0,
    )


def test_too_few_answers_end_the_run_and_resume_repeats_the_round(tmp_path: Path) -> None:
    experiment = spherefed(quorum=0.75)
    grid = grid_for(experiment, tmp_path)
    rounds = serve(grid.open, run_request(experiment, tmp_path / "flower"))
    next(rounds)
    grid.offline |= {101, 102}
    with pytest.raises(FederationError, match=r"round 1: 2 of 4 .* quorum 0.75 needs 3.*--resume"):
        next(rounds)
    grid.offline.clear()
    for _ in serve(grid.open, run_request(experiment, tmp_path / "flower", resume=True)):
        pass
    whole = run_to_end(experiment, tmp_path / "local")
    assert RunDirectory(tmp_path / "flower").result()["weights_sha256"] == whole["weights_sha256"]


def test_an_evaluation_that_too_few_answer_is_repeated_on_resume(tmp_path: Path) -> None:
    experiment = spherefed(quorum=0.75, data=Data(examples=200, held_out=0.2), calibration=None)
    grid = grid_for(experiment, tmp_path)
    for node in (101, 102):
        grid.spoil[node] = lambda q, a: raising(q, a) if q.metadata.message_type == "evaluate" else a
    with pytest.raises(FederationError, match="evaluation at the clients: 2 of 4"):
        through_flower(experiment, tmp_path, grid)
    assert not RunDirectory(tmp_path / "flower").finished
    grid.spoil.clear()
    for _ in serve(grid.open, run_request(experiment, tmp_path / "flower", resume=True)):
        pass
    assert (
        RunDirectory(tmp_path / "flower").result()["accuracy"] == run_to_end(experiment, tmp_path / "local")["accuracy"]
    )


def test_what_sites_remember_cannot_be_gone_on_with_here_nor_the_other_way_round(tmp_path: Path) -> None:
    experiment = rep()
    rounds = serve(grid_for(experiment, tmp_path).open, run_request(experiment, tmp_path / "flower"))
    next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    with pytest.raises(RunError, match="is stored at the sites: resume with `spherefed deploy run`"):
        run_to_end(experiment, tmp_path / "flower", resume=True)
    here = run(experiment, tmp_path / "local")
    next(here)
    here.close()  # type: ignore[attr-defined]
    with pytest.raises(RunError, match="is stored in the run directory: resume with `spherefed run`"):
        next(serve(grid_for(experiment, tmp_path).open, run_request(experiment, tmp_path / "local", resume=True)))


def test_a_run_that_somebody_works_on_cannot_be_resumed_beside_him(tmp_path: Path) -> None:
    experiment = spherefed()
    rounds = serve(grid_for(experiment, tmp_path).open, run_request(experiment, tmp_path / "flower"))
    next(rounds)
    with pytest.raises(RunError, match="another process is working on"):
        next(serve(grid_for(experiment, tmp_path).open, run_request(experiment, tmp_path / "flower", resume=True)))
    rounds.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("make", [spherefed, rep])
def test_resume_in_a_new_flower_run_finds_what_sites_remember(make: Callable[[], Experiment], tmp_path: Path) -> None:
    experiment = make()
    rounds = serve(grid_for(experiment, tmp_path).open, run_request(experiment, tmp_path / "flower"))
    next(rounds)
    next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    site_module._SESSIONS.clear()  # the sites' processes are new, too
    for _ in serve(grid_for(experiment, tmp_path).open, run_request(experiment, tmp_path / "flower", resume=True)):
        pass
    whole, resumed = run_to_end(experiment, tmp_path / "local"), RunDirectory(tmp_path / "flower").result()
    assert resumed["weights_sha256"] == whole["weights_sha256"]
    assert resumed["accuracy"] == whole["accuracy"]


def test_sites_keep_only_what_can_still_be_asked_for(tmp_path: Path) -> None:
    experiment = replace(rep(), rounds=5)
    through_flower(experiment, tmp_path)
    stamps = sorted(file.name for file in (tmp_path / "memory-1").glob("*/*.safetensors"))
    assert stamps == ["1.4.safetensors"]


def test_another_run_of_the_same_experiment_has_a_memory_of_its_own(tmp_path: Path) -> None:
    experiment = rep()
    for name in ("first", "second"):
        for _ in serve(grid_for(experiment, tmp_path).open, run_request(experiment, tmp_path / name)):
            pass
    assert len(list((tmp_path / "memory-1").iterdir())) == 2


# Handshake


def properties_of(**changes: Any) -> Spoil:
    """A site's reply to the handshake with other properties."""

    def told(question: Message, answer: Message) -> Message:
        present = decode(answer.content, REPLY_TYPES)
        if not isinstance(present, HandshakeReply):
            return answer
        return Message(
            encode(replace(present, properties=json.dumps(json.loads(present.properties) | changes))), reply_to=question
        )

    return told


another_release = properties_of(version="9.9", classes=["b", "a"])


@pytest.mark.parametrize(
    "properties",
    [{"input_shape": [[1], 8, 8]}, {"input_shape": ["a"]}, {"normalization": []}, {"classes": [1, 2]}, {"more": 1}],
)
def test_malformed_properties_are_refused_by_name(properties: dict[str, Any], tmp_path: Path) -> None:
    grid = grid_for(spherefed(), tmp_path)
    grid.spoil[101] = properties_of(**properties)
    with pytest.raises(FederationError, match=r"site 'site-0' \(client 0\): malformed properties"):
        through_flower(spherefed(), tmp_path, grid)


def test_a_site_is_whose_key_it_has(tmp_path: Path) -> None:
    experiment = spherefed()
    grid = grid_for(experiment, tmp_path)
    keys = json.dumps({101: 0, 102: 1, 103: 3, 104: 2})
    with pytest.raises(FederationError, match=r"site 'site-2' \(client 2\) has the key of client 3"):
        next(serve(grid.open, run_request(experiment, tmp_path / "flower", keys=keys)))
    stranger = json.dumps({101: 0, 102: 1, 103: 2})
    with pytest.raises(FederationError, match="has a key of no site of this deployment"):
        next(serve(grid.open, run_request(experiment, tmp_path / "flower", keys=stranger)))


def test_with_a_quorum_who_cannot_say_who_it_is_holds_nobody_up(tmp_path: Path) -> None:
    experiment = spherefed(quorum=0.5, rounds=1)
    grid = grid_for(experiment, tmp_path)
    grid.contexts[104].node_config["device"] = "abacus"
    through_flower(experiment, tmp_path, grid)
    assert [line["clients"] for line in read_lines(tmp_path / "flower" / "rounds.jsonl")] == [[0, 1, 2]]


@pytest.mark.parametrize(("retry_seconds", "clients"), [(0.0, [0, 1, 2, 3]), (1e9, [0, 1, 2])])
def test_a_site_that_was_silent_in_the_handshake_is_asked_again_later(
    retry_seconds: float, clients: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a quorum, the run waits no longer than the deadline for it."""
    from spherefed.deployment import membership

    monkeypatch.setattr(membership, "RETRY_SECONDS", retry_seconds)
    experiment = spherefed(quorum=0.5, rounds=1, deadline=0.5)
    grid = grid_for(experiment, tmp_path)
    handshakes: list[Message] = []

    def silent_once(question: Message, answer: Message) -> Message | None:
        if question.metadata.message_type != "query.handshake":
            return answer
        handshakes.append(question)
        return answer if len(handshakes) > 1 else None

    grid.spoil[104] = silent_once
    through_flower(experiment, tmp_path, grid)
    assert [line["clients"] for line in read_lines(tmp_path / "flower" / "rounds.jsonl")] == [clients]
    assert len(handshakes) == (2 if 3 in clients else 1)


def test_the_handshake_lists_who_disagrees_about_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = spherefed()
    grid = grid_for(experiment, tmp_path)
    grid.spoil[102] = another_release
    grid.spoil[104] = another_release
    with pytest.raises(FederationError, match=r"site-1.*package version is 9.9.*class list is \['b', 'a'\].*site-3"):
        through_flower(experiment, tmp_path, grid)
    assert not (tmp_path / "flower").exists()


def refuses_the_head(question: Message, answer: Message) -> Message:
    """A site with another fixed head, which answers with a cause for the terminal when it is sent the server's."""
    if question.metadata.message_type == "query.loadderived":
        return Message(encode(Failure(3, "gone\nfinished\x1b[2J" + 9999 * "x")), reply_to=question)
    return properties_of(derived_state="another")(question, answer)


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        (another_release, r"site 'site-3' \(client 3\): package version is 9.9.*"),
        (refuses_the_head, r"site 'site-3' \(client 3\) did not load the derived state: gone finished \[2Jx+"),
    ],
)
def test_with_a_quorum_a_site_that_disagrees_is_left_out(spoil: Spoil, cause: str, tmp_path: Path) -> None:
    experiment = spherefed(quorum=0.75, rounds=1)
    grid = grid_for(experiment, tmp_path)
    grid.spoil[104] = spoil
    through_flower(experiment, tmp_path, grid)
    assert [line["clients"] for line in read_lines(tmp_path / "flower" / "rounds.jsonl")] == [[0, 1, 2]]
    assert all(re.fullmatch(cause, line["cause"]) for line in read_lines(tmp_path / "flower" / "rejections.jsonl"))
    for wanted in (spherefed(quorum=1.0), spherefed()):
        grid.contexts = grid_for(wanted, tmp_path).contexts
        with pytest.raises(FederationError, match=cause) as end:
            through_flower(wanted, tmp_path / "too-few", grid)
        assert str(end.value).isprintable()
        assert len(str(end.value)) < 1300


def test_sites_that_mean_another_experiment_are_refused(tmp_path: Path) -> None:
    grid = grid_for(spherefed(), tmp_path)
    with pytest.raises(FederationError, match="experiment digest"):
        through_flower(spherefed(seed=3), tmp_path, grid)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"client": 1}, "are the same client"),
        ({"client": 7}, "clients are 0 to 3"),
        ({"cleint": 1}, "did you mean 'client'"),
        ({"device": "abacus"}, "abacus"),
        ({"data": "folder:/nowhere"}, "partitions 'digits', but the site's config has data = 'folder:/nowhere'"),
    ],
)
def test_a_site_that_cannot_be_placed_is_named(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    grid = grid_for(spherefed(), tmp_path)
    grid.contexts[103].node_config.update(config)
    with pytest.raises(FederationError, match=message):
        through_flower(spherefed(), tmp_path, grid)


def test_missing_sites_are_named_and_a_quorum_does_without_them(tmp_path: Path) -> None:
    grid = grid_for(spherefed(), tmp_path)
    grid.offline.add(104)
    with pytest.raises(FederationError, match=r"3 of 4 sites.*without client 3.*quorum"):
        through_flower(spherefed(), tmp_path, grid)
    relaxed = spherefed(quorum=0.5)
    grid = grid_for(relaxed, tmp_path)
    grid.offline.add(104)
    through_flower(relaxed, tmp_path, grid)
    assert {line["cause"] for line in read_lines(tmp_path / "flower" / "rejections.jsonl")} == {
        "its node is not connected"
    }


def test_a_head_that_came_out_differently_is_sent_once(tmp_path: Path) -> None:
    experiment = spherefed()
    grid = grid_for(experiment, tmp_path)
    from spherefed.client.local_model import LocalModel

    run_id, config = "other-cpu", grid.contexts[102].node_config
    session = site_module._session(experiment_to_json(experiment), run_id, Site.from_config(config))
    local_model: LocalModel = session.assembly.local_model
    right = local_model.derived_state()
    local_model.load_derived({"head": right["head"] + 1e-7})
    from spherefed.deployment import server

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server.secrets, "token_hex", lambda _: run_id)
        result = through_flower(experiment, tmp_path, grid)
    assert torch.equal(local_model.derived_state()["head"], right["head"])
    assert [kind for node, kind in grid.asked if kind == "query.loadderived"] == ["query.loadderived"]
    sites = read_json(tmp_path / "flower" / "environment.json")["sites"]
    assert [site["derived_bytes"] for site in sites] == [0, right["head"].nbytes, 0, 0]
    assert result["weights_sha256"] == run_to_end(experiment, tmp_path / "local")["weights_sha256"]


# Sites with their own data


def own_data(tmp_path: Path) -> list[str]:
    """Three sites, none of which has every class."""
    names = []
    rng = np.random.default_rng(0)
    for client, labels in enumerate(([0, 1], [1, 2], [2])):
        y = rng.choice(labels, size=60)
        x = (rng.normal(size=(60, 6, 6)) + 2 * y[:, None, None]).astype(np.float32)
        path = tmp_path / f"own-{client}.npz"
        np.savez(path, images=x, labels=y)
        names.append(f"arrays:{path}")
    return names


def on_sites(**changes: Any) -> Experiment:
    from spherefed.data.partition import Sites

    data = Data(name="sites", classes=("low", "middle", "high"), held_out=0.2)
    return spherefed(**{"data": data, "partition": Sites(clients=3), "rounds": 4} | changes)


def grid_on_sites(experiment: Experiment, tmp_path: Path) -> InProcessGrid:
    for k in range(3):  # each site draws a seed of its own; here it is the same in each run of the tests
        hold_out = {"seed": k, "fraction": 0.2}
        (tmp_path / f"record-{k}.json").write_text(json.dumps({"hold_out": hold_out, "measures": {}, "trainings": {}}))
    configs = [
        {"client": k, "site": f"s{k}", "data": name, "record": str(tmp_path / f"record-{k}.json")}
        for k, name in enumerate(own_data(tmp_path))
    ]
    return InProcessGrid(configs, {"experiment": experiment_to_json(experiment)})


def test_sites_keep_their_own_data_and_are_evaluated_at_home(tmp_path: Path) -> None:
    experiment = on_sites()
    result = through_flower(experiment, tmp_path, grid_on_sites(experiment, tmp_path))
    assert set(result["accuracy"]["calibrated"]) == {LOCAL_TEST_BY_SAMPLES, LOCAL_TEST_BY_CLIENTS}
    assert result["accuracy"]["calibrated"][LOCAL_TEST_BY_CLIENTS] > 0.5
    assert read_json(tmp_path / "flower" / "dataset.json")["classes"] == ["low", "middle", "high"]


@pytest.mark.parametrize("make", [one_shot, ridge_start])
def test_sites_with_their_own_data_need_no_rounds_or_start_from_one_upload(
    make: Callable[[], Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPHEREFED_DATA", str(tmp_path / "data-root"))
    wanted = make()
    encoder = Mlp(widths=(16,))  # for data that are no images
    changes = {"local": wanted.local, "calibration": wanted.calibration, "rounds": wanted.rounds}
    experiment = on_sites(model=replace(wanted.model, encoder=encoder, feature_map=None), **changes)
    result = through_flower(experiment, tmp_path, grid_on_sites(experiment, tmp_path))
    assert result["accuracy"]["calibrated" if experiment.calibration else "trained"][LOCAL_TEST_BY_CLIENTS] > 0.5
    assert (result["frozen_sha256"] is not None) == experiment.model.frozen


def test_federated_calibration_on_sites_is_pooled_least_squares(tmp_path: Path) -> None:
    """FFC over sites = numpy's least squares on all features together (Eq. 10)."""
    experiment = on_sites()
    grid = grid_on_sites(experiment, tmp_path)
    through_flower(experiment, tmp_path, grid)
    model = RunDirectory(tmp_path / "flower").model()
    features, targets = [], []
    for context in grid.contexts.values():
        site = Site.from_config(context.node_config)
        session = site_module._session(experiment_to_json(experiment), "oracle", site)
        session.assembly.local_model.load_state(model)
        for x, y in session.client.examples.in_order(64, device=torch.device("cpu")):
            with torch.no_grad():
                features.append(session.assembly.local_model.classifier.eval().features(x).double().numpy())
            targets.append(np.eye(3)[y.numpy()])
    pooled = np.linalg.lstsq(np.concatenate(features), np.concatenate(targets), rcond=None)[0].T
    assert model.head is not None
    assert np.allclose(model.head["weight"].numpy(), pooled, atol=2e-3)


def test_the_servers_own_data_are_for_testing(tmp_path: Path) -> None:
    name = own_data(tmp_path)[0]
    experiment = on_sites(data=Data(name=name, classes=("low", "middle", "high")))
    result = through_flower(experiment, tmp_path, grid_on_sites(experiment, tmp_path))
    assert set(result["accuracy"]["calibrated"]) == {GLOBAL_TEST}
    assert read_json(tmp_path / "flower" / "dataset.json")["num_test"] == 60


def test_a_site_without_data_or_with_strange_ones_is_named(tmp_path: Path) -> None:
    experiment = on_sites()
    grid = grid_on_sites(experiment, tmp_path)
    grid.contexts[102].node_config["data"] = ""
    np.savez(tmp_path / "strange.npz", images=np.zeros((9, 8, 8), dtype=np.float32), labels=np.arange(9) % 3)
    with pytest.raises(FederationError, match="needs data = folder"):
        through_flower(experiment, tmp_path, grid)
    grid.contexts[102].node_config["data"] = f"arrays:{tmp_path / 'strange.npz'}"
    with pytest.raises(FederationError, match=r"s1.*input shape is \[1, 8, 8\], expected \[1, 6, 6\]"):
        through_flower(experiment, tmp_path, grid)


def test_the_servers_record_says_which_site_failed_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"sites": json.dumps(["north", "south", "west"])}
    experiment = on_sites()
    grid = grid_on_sites(experiment, tmp_path)
    right = grid.contexts[102].node_config["data"]
    grid.contexts[102].node_config["data"] = "folder:/nowhere"
    with pytest.raises(
        FederationError, match=r"the handshake failed: site 'south' .client 1.: .*Error: .*nowhere"
    ) as end:
        list(serve(grid.open, run_request(experiment, tmp_path / "all", **names)))
    assert len(str(end.value).splitlines()) == 1
    some = on_sites(quorum=0.5)
    grid.contexts = {n: replace_run(c, some) for n, c in grid.contexts.items()}
    rounds = serve(grid.open, run_request(some, tmp_path / "some", **names))
    next(rounds)
    (line,) = read_lines(tmp_path / "some" / "rejections.jsonl")
    assert (line["round"], line["client"]) == (0, 1)
    assert re.match(r"site 'south' \(client 1\): \w+Error: .*/nowhere", line["cause"])
    # The site's operator corrects the path: the site is asked again, and takes part.
    grid.contexts[102].node_config["data"] = right
    later = time.monotonic() + membership.RETRY_SECONDS + 1
    monkeypatch.setattr(membership.time, "monotonic", lambda: later)
    next(rounds)
    assert [each["clients"] for each in read_lines(tmp_path / "some" / "rounds.jsonl")] == [[0, 2], [0, 1, 2]]


def replace_run(context: Any, experiment: Experiment) -> Any:
    context.run_config["experiment"] = experiment_to_json(experiment)
    return context


def test_a_failure_cannot_write_control_characters_or_claim_another_site(tmp_path: Path) -> None:
    experiment = on_sites()
    grid = grid_on_sites(experiment, tmp_path)
    grid.spoil[102] = lambda q, a: Message(
        encode(Failure(0, "\x1b[2J no data\nround 3: fine" + 9999 * "x")), reply_to=q
    )
    keys = json.dumps({101: 0, 102: 1, 103: 2})
    with pytest.raises(FederationError, match=r"handshake failed: client 1:  .2J no data round 3: fine") as end:
        list(serve(grid.open, run_request(experiment, tmp_path / "out", keys=keys)))
    assert len(str(end.value)) < 1100


def folders(tmp_path: Path) -> list[str]:
    """Three sites with images of different brightness, each of one class."""
    from PIL import Image

    for client, name in enumerate(("low", "middle", "high")):
        folder = tmp_path / f"folder-{client}" / name
        folder.mkdir(parents=True)
        for number in range(10):
            Image.new("RGB", (6, 6), (60 * client + number, 10, 10)).save(folder / f"{number}.png")
    return [f"folder:{tmp_path / f'folder-{client}'}" for client in range(3)]


def test_sites_that_normalise_differently_are_named_and_one_normalisation_for_all_is_a_way_out(tmp_path: Path) -> None:
    experiment = on_sites(rounds=1)
    configs = [
        {
            "client": k,
            "site": f"s{k}",
            "data": name,
            "data_root": str(tmp_path),
            "limits": LOW,
            "record": f"{name[7:]}.json",
        }
        for k, name in enumerate(folders(tmp_path))
    ]
    with pytest.raises(FederationError, match=r"s1.*normalisation is .* expected .*s2.*normalisation"):
        through_flower(experiment, tmp_path, InProcessGrid(configs, {"experiment": experiment_to_json(experiment)}))
    agreed = replace(experiment, data=replace(experiment.data, mean=(0.3, 0.1, 0.1), std=(0.2, 0.2, 0.2)))
    through_flower(agreed, tmp_path, InProcessGrid(configs, {"experiment": experiment_to_json(agreed)}))
    assert [line["clients"] for line in read_lines(tmp_path / "flower" / "rounds.jsonl")] == [[0, 1, 2]]


def test_a_site_with_another_frozen_encoder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPHEREFED_DATA", str(tmp_path / "data-root"))
    experiment, built = one_shot(), site_module.assemble_site

    def with_other_weights(given: Experiment, site: Site, *rest: Any, **more: Any) -> Any:
        assembly, data_version = built(given, site, *rest, **more)
        if site.client == 2:
            monkeypatch.setattr(assembly.local_model, "_frozen_digest", "other")
        return assembly, data_version

    monkeypatch.setattr(site_module, "assemble_site", with_other_weights)
    with pytest.raises(FederationError, match=r"site-2.* \(client 2\): digest of the frozen encoder is .*, expected"):
        through_flower(experiment, tmp_path)


def test_a_run_has_no_number_that_leads_out_of_the_folder(tmp_path: Path) -> None:
    for run_id in ("../../x", "", "a/b", "a" * 65):
        with pytest.raises(ConfigError, match="run id"):
            site_module.answer(
                Handshake(), experiment_to_json(spherefed()), run_id, Site(client=0, client_state=str(tmp_path))
            )


def test_stacked_clients_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="stack = 2 needs all clients in one process"):
        through_flower(spherefed(stack=2), tmp_path)


# Codec


@pytest.mark.parametrize("small", [0, 1 << 20])
def test_messages_come_back_as_they_were(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from spherefed.engines import flower_codec

    monkeypatch.setattr(flower_codec, "MAX_INLINE_BYTES", small)  # inside the record, and as an array
    state = ModelState(
        {"w": torch.randn(3, 2), "scalar": torch.tensor(2.0)},
        {"mean": torch.zeros(2, dtype=torch.float64)},
        {"weight": torch.ones(2, 2, dtype=torch.bfloat16)},
    )
    train = Train(3, state, 0.1, {"c": torch.arange(3)})
    back = decode(encode(train), MESSAGE_TYPES)
    assert back.model.digest() == state.digest()
    assert (back.round, back.lr, back.extra["c"].dtype) == (3, 0.1, torch.int64)
    nothing = decode(encode(Evaluate(1, ModelState({}, {}), personalize=True)), MESSAGE_TYPES)
    assert (nothing.personalize, nothing.model.head, nothing.extra) == (True, None, {})
    assert asdict(decode(encode(Failure(2, "ü")), REPLY_TYPES)) == {"client": 2, "cause": "ü"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ('{"client": "0", "cause": "x"}', "needs 'client': int"),
        ('{"client": true, "cause": "x"}', "needs 'client': int"),
        ('{"client": 0}', "needs 'cause': str"),
        ("[]", "must be a JSON object"),
        ("{", "Expecting"),
    ],
)
def test_what_is_no_message_is_refused_with_a_reason(fields: str, message: str) -> None:
    records = RecordDict({MESSAGE: ConfigRecord({"kind": "Failure", "fields": fields, SAFETENSORS: b""})})
    with pytest.raises(ValueError, match=message):
        decode(records, REPLY_TYPES)


def test_a_kind_that_is_not_expected_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown message type 'Train'"):
        decode(encode(Train(0, ModelState({}, {}), 0.1)), REPLY_TYPES)
    with pytest.raises(ValueError, match="not a spherefed message"):
        decode(RecordDict({}), REPLY_TYPES)


def test_the_algorithm_is_unknown_to_the_transport() -> None:
    for name in ("flower.py", "flower_codec.py", "flower_site_process.py"):
        text = (Path(site_module.__file__).parents[1] / "engines" / name).read_text(encoding="utf-8")
        assert not {word for word in ("algorithms", "calibration", "experiment") if f"spherefed.{word}" in text}, name
