"""Which sites a result is about: from the files of runs in which sites fail at different times."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from spherefed.cli.deploy import _print_sites
from spherefed.client.evaluation import LOCAL_TEST_BY_SAMPLES
from spherefed.data.partition import Iid
from spherefed.deployment.handshake import HandshakeReply, SiteProperties, differences
from spherefed.deployment.membership import Membership
from spherefed.deployment.participation import missing_sites, site_rows
from spherefed.deployment.server import RunRequest, serve
from spherefed.experiment import Data, experiment_to_json
from spherefed.runs.directory import RunDirectory, read_json
from support.in_process_grid import InProcessGrid, Spoil
from support.methods_on_digits import spherefed

NAMES = ["north", "south", "west"]
LOW = json.dumps({"min_samples_per_feature": 0})


def failing_from(number: int, kinds: tuple[str, ...]) -> Spoil:
    """A site that answers this many requests of these kinds, and then no other."""
    asked: list[str] = []

    def spoil(question: Message, answer: Message) -> Message | None:
        if question.metadata.message_type in kinds:
            asked.append(question.metadata.message_type)
            return answer if len(asked) <= number else None
        return answer

    return spoil


def run_with(out: Path, spoil: dict[int, Spoil], *, offline: tuple[int, ...] = (), held_out: float = 0.2) -> list[Any]:
    experiment = spherefed(
        rounds=3, quorum=0.3, deadline=0.1, partition=Iid(clients=3), data=Data(examples=300, held_out=held_out)
    )
    text = experiment_to_json(experiment)
    configs = [{"client": k, "site": name, "data": "digits", "limits": LOW} for k, name in enumerate(NAMES)]
    grid = InProcessGrid(configs, {"experiment": text})
    grid.spoil, grid.offline = spoil, set(offline)
    request = RunRequest(experiment=text, out=str(out), wait=0.0, sites=json.dumps(NAMES))
    for _ in serve(grid.open, request):
        pass
    return site_rows(out)


def test_the_table_of_sites_says_which_model_it_is_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_with(tmp_path, {})
    _print_sites(tmp_path)
    assert "accuracy, calibrated" in capsys.readouterr().out


EVERYTHING = ("train", "evaluate", "query.measure")


@pytest.mark.parametrize(
    ("spoil", "offline", "held_out", "sentence", "rounds"),
    [
        ({}, (), 0.2, None, [3, 3, 3]),
        (
            {103: failing_from(0, EVERYTHING)},
            (),
            0.2,
            "evaluated on 2 of 3 sites; west missing since round 1",
            [3, 3, 0],
        ),
        (
            {103: failing_from(1, EVERYTHING)},
            (),
            0.2,
            "evaluated on 2 of 3 sites; west missing since round 2",
            [3, 3, 1],
        ),
        ({}, (103,), 0.2, "evaluated on 2 of 3 sites; west missing since round 1", [3, 3, 0]),
        (
            {102: failing_from(0, ("evaluate",))},
            (),
            0.2,
            "evaluated on 2 of 3 sites; south missing after the last round",
            [3, 3, 3],
        ),
        (
            {101: failing_from(2, ("train",)), 103: failing_from(1, ("train",))},
            (),
            0.0,
            "1 of 3 sites took part in the last round; north missing since round 3; west missing since round 2",
            [2, 3, 1],
        ),
    ],
    ids=["nobody", "from the start", "from round 2", "never connected", "evaluation only", "without evaluation"],
)
def test_a_missing_site_is_named_with_its_first_missing_round(
    spoil: dict[int, Spoil],
    offline: tuple[int, ...],
    held_out: float,
    sentence: str | None,
    rounds: list[int],
    tmp_path: Path,
) -> None:
    rows = run_with(tmp_path / "run", spoil, offline=offline, held_out=held_out)
    assert [row.site for row in rows] == NAMES
    assert [row.rounds for row in rows] == rounds
    assert missing_sites(rows, 3) == sentence


def test_the_accuracy_is_that_of_the_sites_in_the_rows(tmp_path: Path) -> None:
    rows = run_with(tmp_path / "run", {103: failing_from(0, EVERYTHING)})
    counted = [(row.correct, row.num_examples) for row in rows if row.correct is not None and row.num_examples]
    assert len(counted) == 2
    accuracy = sum(correct for correct, _ in counted) / sum(number for _, number in counted)
    assert RunDirectory(tmp_path / "run").result()["accuracy"]["calibrated"][LOCAL_TEST_BY_SAMPLES] == accuracy
    assert rows[2].accuracy is None


def test_examples_that_are_left_out_of_statistics_are_reported(tmp_path: Path) -> None:
    rows = run_with(tmp_path / "run", {})
    sites = read_json(tmp_path / "run" / "environment.json")["sites"]
    assert [row.left_out_of_statistics for row in rows] == [site["left_out_of_statistics"] for site in sites]
    summed = RunDirectory(tmp_path / "run").result()["calibration"]["summed"]
    assert summed["examples"] + summed["zero_vectors"] == 3 * 80 - sum(row.left_out_of_statistics for row in rows)
    assert sum(row.left_out_of_statistics for row in rows) > 0


PROPERTIES = SiteProperties(
    version="1",
    experiment="e",
    classes=("a",),
    input_shape=(1,),
    normalization="n",
    components="none",
    frozen_encoder="",
    derived_state="d",
)


class Named:
    """Three nodes whose sites give these names in the handshake."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def nodes(self) -> set[int]:
        return {10, 11, 12}

    def ask(self, nodes: list[int], message: Any, deadline: float, max_bytes: int | None = None) -> Any:
        return ((node, HandshakeReply(node - 10, self.names[node - 10], PROPERTIES.to_json())) for node in nodes)


@pytest.mark.parametrize("name", ["north", "[/x]", "\x1b]0;owned\x07\x1b[2Jall sites fine", "x" * 10**6])
def test_a_site_cannot_choose_what_the_operator_reads(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = spherefed()
    experiment = replace(experiment, partition=replace(experiment.partition, clients=3))
    keys = {10: 0, 11: 1, 12: 2}
    for known in (NAMES, []):  # the deployment names its sites, or does not
        sites = Membership(Named(["north", "south", name]), experiment, keys, known)  # type: ignore[arg-type]
        sites.wait_for_sites(1)
        given = sites.describe()[2]["site"]
        assert given == "west" if known else len(given) <= 80
        assert given.isprintable()
        run_with(tmp_path / str(len(known)), {})
        environment = tmp_path / str(len(known)) / "environment.json"
        environment.write_text(json.dumps(read_json(environment) | {"sites": sites.describe()}))
        _print_sites(environment.parent)
        assert "\x1b" not in capsys.readouterr().out


def test_a_difference_between_sites_is_printable() -> None:
    hostile = replace(PROPERTIES, version="9\x1b[2J\nfinished")
    assert differences(hostile, PROPERTIES) == ["package version is 9 [2J finished, expected 1"]
