"""Malformed input of every kind ends in a typed error, quickly and without much memory."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spherefed.assembly import assemble
from spherefed.cli import commands
from spherefed.data import sources
from spherefed.errors import ConfigError, DataError, RunError
from spherefed.experiment import Data, Experiment, read_experiment, with_settings
from spherefed.recipes import find_experiment
from spherefed.report.summary import summarize
from spherefed.runs.loading import load
from spherefed.runs.runner import run, run_to_end
from support.data_files import image_folder
from support.fuzzed_areas import AREAS, forge
from support.small import blobs, save_arrays, tiny

FULL = {"settings": 6000, "files": 6000, "messages": 4000, "data": 3500, "runs": 3000}
"""Cases of each area in the long test: more than 20,000 in all."""


def fuzzed(module: str, *arguments: object) -> dict[str, Any]:
    tests = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), *filter(None, sys.path)])}
    command = [sys.executable, "-m", f"support.{module}", *map(str, arguments)]
    ended = subprocess.run(command, check=True, env=environment, timeout=3600, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def test_the_long_test_has_more_than_twenty_thousand_cases() -> None:
    assert sum(FULL.values()) >= 20_000
    assert FULL.keys() == AREAS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("area", FULL)
def test_some_malformed_input_ends_in_typed_errors(area: str) -> None:
    assert fuzzed("fuzzing", area, 150, 1)["faults"] == []


@pytest.mark.soak
@pytest.mark.parametrize("area", FULL)
def test_much_malformed_input_ends_in_typed_errors(area: str) -> None:
    found = fuzzed("fuzzing", area, FULL[area], 13)
    assert found["cases"] == FULL[area]
    assert found["faults"] == []
    assert found["slowest"] < 1.0


@pytest.mark.parametrize(
    "cases", [pytest.param(3, marks=pytest.mark.slow), pytest.param(50, marks=pytest.mark.soak)], ids=str
)
def test_malformed_input_to_real_processes_ends_in_one_line(cases: int) -> None:
    assert fuzzed("fuzzed_processes", cases, 13)["faults"] == []


# One test for each traceback that was found from outside.


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return tiny(rounds=1, data=Data(name=save_arrays(tmp_path / "data.npz", blobs())))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("partition={kind=[1]}", r"partition\.kind \[1\] is unknown"),
        ("partition={kind={a=1}}", r"partition\.kind \{'a': 1\} is unknown"),
        ("seed=" + "9" * 5000, "cannot be parsed"),
        ("seed=0x" + "f" * 5000, "seed must be below 2¹²⁸, got an int that is too long to print"),
        ("local.lr=0x" + "f" * 5000, "local.lr must be a number, got an int that is too long to print"),
        ("data.classes=" + "[" * 5000 + "]" * 5000, "cannot be parsed"),
        ("data.mean=" + "{a=" * 5000 + "1" + "}" * 5000, "cannot be parsed"),
        ("a." * 5000 + "b=1", "no field lies deeper"),
        ('name="a\\u0000b"', "name must be a plain word"),
        (f'name="{"x" * 300}"', "name must be a plain word"),
        ("rounds=1000000001", "rounds must be at most"),
    ],
    ids=lambda text: text[:30],
)
def test_an_impossible_setting_is_a_config_error(experiment: Experiment, setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        with_settings(experiment, [setting])
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("suffix", ["toml", "json"])
@pytest.mark.parametrize("content", ["deep", "digits"])
def test_deep_nesting_and_thousands_of_digits_in_files_are_config_errors(
    tmp_path: Path, suffix: str, content: str
) -> None:
    value = "[" * 100_000 + "]" * 100_000 if content == "deep" else "9" * 5000
    path = tmp_path / f"e.{suffix}"
    path.write_text(f"name = {value}" if suffix == "toml" else f'{{"name": {value}}}')
    with pytest.raises(ConfigError, match="cannot be parsed"):
        read_experiment(path)


@pytest.mark.parametrize("name", ["a\0b", "a\0b.toml", "x/\0", "é\0"])
def test_an_experiment_whose_name_contains_nul_is_a_config_error(name: str) -> None:
    with pytest.raises(ConfigError):
        find_experiment(name)


@pytest.mark.parametrize("name", ["folder:~nobody-here/x", "arrays:~nobody-here/x.npz", "folder:a\0b", "arrays:a\0b"])
def test_a_data_path_of_nobody_or_with_nul_is_a_data_error(name: str) -> None:
    with pytest.raises(DataError, match=r"names a user that does not exist|NUL"):
        sources.load(name)


def test_a_class_folder_whose_name_is_not_text_is_a_data_error(tmp_path: Path) -> None:
    image_folder(tmp_path / "images")
    (tmp_path / "images" / "x\udcff").mkdir()  # the byte 0xff
    with pytest.raises(DataError, match="not printable text") as caught:
        sources.load(f"folder:{tmp_path / 'images'}", tmp_path)
    str(caught.value).encode()  # the message can be printed


def test_a_model_beyond_the_memory_of_the_machine_says_how_much_it_takes(experiment: Experiment) -> None:
    with pytest.raises(ConfigError, match=r"7,000,000,000 parameters, which take at least 112 GB of memory"):
        assemble(with_settings(experiment, ["model.encoder.widths=[1000000000]"]))
    with pytest.raises(ConfigError, match="more than 10¹⁸ parameters"):
        assemble(with_settings(experiment, [f"model.encoder.widths=[{10**18},{10**18}]"]))


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "quantity", "shards"])
def test_far_more_clients_than_examples_are_refused_at_once(experiment: Experiment, kind: str) -> None:
    with pytest.raises(ConfigError, match="there are 90 examples"):
        assemble(with_settings(experiment, [f'partition={{kind="{kind}", clients=100000000}}']))


def test_shards_by_the_million_are_refused_at_once(experiment: Experiment) -> None:
    with pytest.raises(ConfigError, match="there are 90 examples"):
        assemble(with_settings(experiment, ['partition={kind="shards", clients=2, shards_per_client=100000000}']))


def changed_file(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_stored_description_without_classes_is_a_run_error(experiment: Experiment, tmp_path: Path) -> None:
    run_to_end(experiment, tmp_path / "run")
    for content in ("{}", "[]", '{"classes": 5}', '{"classes": [], "input_shape": "x"}'):
        (tmp_path / "run" / "dataset.json").write_text(content)
        forge(tmp_path / "run")
        with pytest.raises(RunError, match=r"dataset\.json"):
            load(tmp_path / "run")


@pytest.mark.parametrize("content", ["{}\n", "[]\n", '{"round": "0"}\n', '{"round": true}\n', "1\n"])
def test_a_rejection_that_says_no_round_is_a_run_error(experiment: Experiment, tmp_path: Path, content: str) -> None:
    rounds = run(with_settings(experiment, ["rounds=2"]), tmp_path / "run")
    next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    (tmp_path / "run" / "rejections.jsonl").write_text(content)
    with pytest.raises(RunError, match=r"rejections\.jsonl is damaged: line 1"):
        run_to_end(with_settings(experiment, ["rounds=2"]), tmp_path / "run", resume=True)


def test_seconds_of_four_hundred_digits_are_a_run_error(experiment: Experiment, tmp_path: Path) -> None:
    run_to_end(experiment, tmp_path / "run")
    rounds = tmp_path / "run" / "rounds.jsonl"
    line = json.loads(rounds.read_text()) | {"seconds": 10**400}
    rounds.write_text(json.dumps(line) + "\n")
    with pytest.raises(RunError, match=r"rounds\.jsonl.*401 digits"):
        summarize([tmp_path / "run"])
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(RunError, match=r"rounds\.jsonl"):
        run_to_end(experiment, tmp_path / "run", resume=True)


def test_the_command_line_prints_one_line_for_each(tmp_path: Path) -> None:
    for arguments in (
        ["run", "digits", "--set", "partition={kind=[1]}"],
        ["run", "digits", "--set", "seed=0x" + "f" * 5000],
    ):
        ended = CliRunner().invoke(commands, arguments)
        assert isinstance(ended.exception, ConfigError)
        assert "\n" not in str(ended.exception)
