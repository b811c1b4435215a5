"""Turn what a caller passes in memory into an experiment that identifies it, and the objects themselves."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from torch import nn
from torch.nn.parameter import is_lazy

from spherefed import recipes
from spherefed.assembly import InMemory
from spherefed.data.columns import ByColumn, groups_by_column, without_column
from spherefed.data.in_memory import clients_in_memory, dataset_in_memory
from spherefed.data.partition import Natural, Partition
from spherefed.data.sources import Dataset
from spherefed.errors import ConfigError
from spherefed.experiment import Experiment, with_fields
from spherefed.nn.encoders import InMemoryEncoder
from spherefed.recipes.methods import Settings, tuning_key, with_method, with_tuned
from spherefed.runs.runner import Engine
from spherefed.schema import kind_of, shown, suggest, to_plain

OWN_DATA = "own-data"
"""The name of an experiment on data in memory, in place of the name of its recipe, which names other data."""


class Inputs(TypedDict, total=False):
    """Data and encoder of the caller, instead of those that the experiment names."""

    data: Any
    """(X, y), a torch Dataset, a Hugging Face dataset, a dict of columns, a pandas frame, or a list of batches."""
    test: Any
    """The test set in the same form; without it a fixed fifth of the data is held out. An `sf.Dataset` has its own."""
    clients: Sequence[Any]
    """One data set per client, in place of `data` and of a partition."""
    encoder: nn.Module
    """A module that computes features (n, l). It is copied; every seed starts from its weights."""
    image_key: str
    label_key: str
    """Names of the columns of inputs and labels."""


def with_inputs(
    experiment: Experiment,
    *,
    data: Any = None,
    test: Any = None,
    clients: Sequence[Any] | None = None,
    encoder: nn.Module | None = None,
    image_key: str | None = None,
    label_key: str | None = None,
) -> tuple[Experiment, InMemory]:
    """The experiment about these inputs, which it identifies by their digests, and the inputs."""
    check_experiment(experiment)
    if data is not None and clients is not None:
        raise ConfigError("give either data= (split by the partition) or clients= (one data set per client), got both")
    if test is not None and data is None and clients is None:
        raise ConfigError("test= was given without data= or clients=: give one of them, or leave test= out")
    if (data is not None or clients is not None) and (label := experiment.data.label_column) is not None:
        raise ConfigError(
            f"data.label_column = {label!r} is for table files; for data in memory give label_key={label!r}"
        )
    dataset: Dataset | None = None
    parts: Partition | None = None
    partition = experiment.partition
    if data is not None and isinstance(partition, ByColumn):
        groups, test = groups_by_column(data, partition.column), without_column(test, partition.column)
        dataset, parts = clients_in_memory(groups, test, image_key=image_key, label_key=label_key)
        experiment = replace(experiment, partition=replace(partition, clients=len(groups)))
    elif data is not None:
        dataset = dataset_in_memory(data, test, image_key=image_key, label_key=label_key)
    elif clients is not None:
        if isinstance(clients, Mapping) or not isinstance(clients, Iterable):
            given = "a dict" if isinstance(clients, Mapping) else repr(clients)
            how = "list(clients.values())" if isinstance(clients, Mapping) else "[(X0, y0), (X1, y1)]"
            raise ConfigError(f"clients= must be a list with one data set per client, got {given}; write {how}")
        dataset, parts = clients_in_memory(list(clients), test, image_key=image_key, label_key=label_key)
        cohort = None if experiment.cohort is None else min(experiment.cohort, len(parts.parts))
        experiment = replace(experiment, partition=Natural(clients=len(parts.parts)), cohort=cohort)
    if dataset is not None:
        name = OWN_DATA if experiment.name in recipes.RECIPES else experiment.name
        experiment = replace(experiment, name=name, data=replace(experiment.data, name=dataset.name))
    if encoder is not None:
        _check_module(encoder)
        model = replace(experiment.model, encoder=InMemoryEncoder.of(encoder))
        experiment = replace(experiment, model=model)
    return experiment, InMemory(dataset=dataset, partition=parts, encoder=encoder)


def _check_module(encoder: object) -> None:
    if not isinstance(encoder, nn.Module):
        given = f"the class {encoder.__name__}" if isinstance(encoder, type) else repr(encoder)
        raise ConfigError(
            f"encoder= must be an nn.Module, got {given}; pass an instance, or name a class in the experiment: "
            "model={'encoder': {'kind': 'package.module:Name'}}"
        )
    if lazy := [name for name, parameter in encoder.named_parameters() if is_lazy(parameter)]:
        raise ConfigError(
            f"encoder= has parameters without a shape, such as {lazy[0]!r}; call it once on inputs: encoder(X[:2])"
        )


def check_experiment(experiment: object) -> None:
    """Refuse anything but an experiment, such as the name of a recipe."""
    if not isinstance(experiment, Experiment):
        how = f"sf.recipe({experiment!r})" if isinstance(experiment, str) else "sf.recipe(…) or sf.Experiment(…)"
        given = repr(experiment) if isinstance(experiment, str) else f"a {type(experiment).__name__}"
        raise ConfigError(f"experiment must be an Experiment, got {given}; write {how}")


def check_call(engine: object, inputs: Mapping[str, Any]) -> None:
    """Refuse an engine that is only named, and inputs that do not exist."""
    if engine is not None and not isinstance(engine, Engine):
        raise ConfigError(f"engine must be an Engine, got {engine!r}; for example sf.Engine(kind='local', workers=2)")
    for name in inputs:
        if name not in Inputs.__annotations__:
            raise ConfigError(f"there is no argument {name!r}; {suggest(name, Inputs.__annotations__)}")


def check_methods(methods: object) -> None:
    """Refuse anything but a list of method names."""
    if isinstance(methods, str):
        raise ConfigError(f"methods must be a list of names, got {methods!r}; write [{methods!r}]")
    wrong = [each for each in methods if not isinstance(each, str)] if isinstance(methods, Iterable) else [methods]
    if wrong:
        raise ConfigError(f"a method must be a name such as 'fedavg' or 'fedavg+spherefed', got {shown(wrong[0])}")


def recipe(source: str | Path, /, method: str | None = None, **changes: Any) -> Experiment:
    """A recipe, an experiment file or a run directory, with a method and changed fields.

    `changes` are fields of the experiment: values, components, or dicts of the fields below (`local={"lr": 0.1}`);
    `name="scans"` is the label in plots and progress.
    A method uses the hyper-parameters that were tuned for the recipe, unless `changes` sets them.

    >>> recipe("digits", method="fedprox+spherefed", rounds=5, partition={"alpha": 1.0}).partition
    Dirichlet(alpha=1.0, clients=10, min_size=0, balanced=False)
    """
    if not isinstance(source, str | Path):
        raise ConfigError(f"recipe must be a name or a path, got {source!r}; allowed: {', '.join(recipes.RECIPES)}")
    source = str(source)
    experiment = recipes.find_experiment(source)
    if method is not None:
        check_methods([method])
        experiment = with_method(experiment, method, recipes.tuned(source))
    return with_changes(experiment, changes)


def with_changes(experiment: Experiment, changes: Mapping[str, Any]) -> Experiment:
    """The experiment with these fields; a dict changes only the fields that it names."""
    components: dict[str, Any] = {name: value for name, value in changes.items() if is_dataclass(value)}
    return replace(with_fields(experiment, _paths(changes)), **components)


def _paths(changes: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in changes.items():
        if isinstance(value, Mapping):
            found += _paths(value, f"{before}{name}.")
        elif is_dataclass(value) and before:
            kind = {"kind": kind_of(value)} if hasattr(value, "kind") or not _is_built_in(value) else {}
            found.append((f"{before}{name}", kind | to_plain(value)))
        elif isinstance(value, np.generic):
            found.append((f"{before}{name}", value.item()))
        elif not is_dataclass(value):
            found.append((f"{before}{name}", list(value) if isinstance(value, tuple) else value))
    return found


def _is_built_in(value: Any) -> bool:
    return str(type(value).__module__).partition(".")[0] == "spherefed"


def tuned_for(experiment: Experiment) -> Settings:
    """The tuned hyper-parameters of the recipe that this experiment comes from, as far as it left them alone."""
    if experiment.name not in recipes.RECIPES:
        return {}
    original = recipes.RECIPES[experiment.name]()
    same = original.local == experiment.local and original.data.name == experiment.data.name
    return recipes.tuned(experiment.name) if same else {}


def with_values(methods: Mapping[str, Experiment], tuned: Settings) -> dict[str, Experiment]:
    """Experiments by name with the hyper-parameters of the same name; refuses values of which none is used."""
    if not methods.keys() & tuned.keys():
        raise ConfigError(
            f"tuned= has values for {', '.join(tuned) or 'none'}, and methods= has {', '.join(methods) or 'none'}; "
            "give values under the names of methods=, or leave tuned= out"
        )
    return {name: with_tuned(each, tuned[name]) if name in tuned else each for name, each in methods.items()}


def untuned(methods: Mapping[str, Experiment], tuned: Settings, recipe: str | None = None) -> str | None:
    """A sentence about the methods that have no tuned values, if there are any.

    `recipe` is the one whose values the methods use on data or with an encoder that it was not tuned for.
    """
    known = tuned if recipe is None else {}
    trained = [name for name, e in methods.items() if e.local is not None and e.rounds]
    missing = [name for name in trained if tuning_key(name) not in known]
    if not missing:
        return None
    rates = ", ".join(f"{name} (local.lr {methods[name].local_training.lr:g})" for name in missing)
    if recipe is None:
        return f"not tuned: {rates}; methods need different learning rates, so tune them with sf.tune first"
    return (
        f"not tuned: {rates}; recipe {recipe!r} has these rates for its own data and encoder: tune them for yours with "
        "sf.tune(…), and pass its result to sf.compare as tuned="
    )


def untuned_run(experiment: Experiment, named: Experiment) -> str | None:
    """A sentence about a rate that `recipe` took from its tuned values, if the caller exchanged data or encoder."""
    if not exchanged(experiment, named) or experiment.local is None or not experiment.rounds:
        return None
    made = {name: make() for name, make in recipes.RECIPES.items()}  # by data: the caller may have named the experiment
    source = next((n for n, e in made.items() if e.data.name == experiment.data.name and e.local is not None), None)
    if source is None or made[source].local_training.lr == experiment.local.lr:
        return None  # no recipe, or the rate that it shows
    original, tuned = made[source], recipes.tuned(source)
    for method in tuned:
        if _method_and_rate(with_method(original, method, tuned)) == _method_and_rate(experiment):
            return (
                f"not tuned: {method} (local.lr {experiment.local.lr:g}); recipe {source!r} has this rate for "
                "its own data and encoder: choose one for yours with sf.tune(…), and set local={'lr': …}"
            )
    return None


def exchanged(experiment: Experiment, named: Experiment) -> bool:
    """Whether the caller passed other data or another encoder than the experiment names."""
    return experiment.data != named.data or experiment.model.encoder != named.model.encoder


def _method_and_rate(experiment: Experiment) -> tuple[object, ...]:
    return experiment.algorithm, experiment.model.head, experiment.loss, experiment.local_training.lr
