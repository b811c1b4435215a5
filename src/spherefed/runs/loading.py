"""Models of finished runs: load them, and evaluate them on data."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spherefed.assembly import build_classifier, build_local_model, load_named
from spherefed.client.evaluation import Counts, count_correct
from spherefed.data.dataset import Dataset
from spherefed.data.shared_format import SharedFormat
from spherefed.errors import DataError, RunError
from spherefed.experiment import Experiment, read_experiment
from spherefed.nn.classifier import Classifier, on_device
from spherefed.nn.encoders import InMemoryEncoder
from spherefed.runs.directory import RunDirectory, read_object
from spherefed.tensors import digest, one_thread, strip_prefix

MAX_SIDE = 10**6


def load(run_directory: str | Path, client: int | None = None, *, encoder: nn.Module | None = None) -> Classifier:
    """The final (calibrated) module of a finished run, in eval mode; if a part is private, that of one client.

    `encoder` is needed if the run was given its encoder as a module. Trained weights are those of the run; parameters
    without gradients and integer buffers are not stored, so the module must have those that it was run with. A warning
    says which of the user's own components have changed since the run. Instead of a run, the path may be a .safetensors
    file of `spherefed export`.
    """
    if not isinstance(run_directory, str | Path):
        raise RunError(f"load needs the path of a run directory, got {run_directory!r}; for example 'runs/mine'")
    path = Path(run_directory)
    if path.is_file():
        from spherefed.runs.export import load_exported

        return load_exported(path)
    directory = RunDirectory(path)
    directory.check_whole(states=False)
    model, experiment = directory.model(), read_experiment(path)
    shape, dtype, num_classes = describe_inputs(path / "dataset.json", read_object(path / "dataset.json"))
    if lines := directory.changed_components(experiment):
        warnings.warn(f"{path}: components have changed since the run: {'; '.join(lines)}", stacklevel=2)
    directory.check_encoder(encoder)
    if encoder is not None and isinstance(experiment.model.encoder, InMemoryEncoder):
        named = InMemoryEncoder.of(encoder)  # a module that has been trained since has other weights
        experiment = replace(experiment, model=replace(experiment.model, encoder=named))
    classifier = build_classifier(experiment, shape, num_classes, dtype=dtype, encoder=encoder)
    local_model = build_local_model(replace(experiment, stack=0), classifier)
    stored = directory.result().get("frozen_sha256")
    if stored not in (None, digest({})) and stored != local_model.frozen_digest():  # of nothing, by earlier releases
        raise RunError(f"{path}: {_other_weights(experiment)}")
    if local_model.private and client is None:
        raise RunError(f"{path}: a part of the model stays with each client; name the one whose model to load")
    if client is not None and not local_model.private:
        raise RunError(f"{path} has one model for all clients, got client {client}; leave the client out")
    if client is not None and not 0 <= client < experiment.partition.clients:
        raise RunError(f"{path} has clients 0 to {experiment.partition.clients - 1}, not {client}")
    state = directory.client_states().load(client, before=experiment.rounds) if client is not None else None
    local_model.load_state(model, strip_prefix("private", state) if state else None)
    # In the usual layout, which for example tensor files need.
    local_model.classifier.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return local_model.classifier.eval()


def _other_weights(experiment: Experiment) -> str:
    """What is wrong if the frozen weights are not those of the run, and what to do."""
    if isinstance(experiment.model.encoder, InMemoryEncoder):
        return (
            "layers of encoder= that are not trained, or integer buffers, have other values than in the run, which "
            "does not store them; give the module as it was run with"
        )
    return "the frozen encoder built here has other weights than in the run; install its release"


def describe_inputs(path: Path, data: Mapping[str, Any]) -> tuple[tuple[int, ...], str, int]:
    """Input shape, input dtype and number of classes, from the description of a data set that was read from `path`."""
    shape, dtype, classes = data.get("input_shape"), data.get("input_dtype", "float32"), data.get("classes")
    if not isinstance(shape, list) or not all(type(side) is int and 0 < side < MAX_SIDE for side in shape):
        raise RunError(f"{path} is damaged: input_shape must be a list of positive whole numbers")
    if not isinstance(classes, list) or not classes or not isinstance(getattr(torch, str(dtype), None), torch.dtype):
        raise RunError(f"{path} is damaged: it must list the classes, and input_dtype must be a dtype of torch")
    return tuple(shape), str(dtype), len(classes)


def _as_in_training(run_directory: Path, experiment: Experiment, data: Dataset) -> Dataset:
    """With the classes, the order of columns and the normalization of the data that the run was trained on."""
    trained_on, wanted = read_object(run_directory / "dataset.json"), experiment.shared_format
    constants = trained_on.get("normalization")
    if isinstance(constants, dict) and data.train.prepare is not None and not wanted.mean:
        wanted = SharedFormat(
            mean=tuple(constants["mean"]), std=tuple(constants["std"]), owner=f"the normalization of {run_directory}"
        )
    classes = tuple(map(str, trained_on["classes"]))
    wanted = replace(wanted, classes=classes, class_list=f"the classes of {run_directory}")
    return wanted.apply_to(_in_column_order(data, trained_on.get("provenance"), run_directory))


def _in_column_order(data: Dataset, trained_on: Any, run_directory: Path) -> Dataset:
    """The data with columns in the order of the run's, where both record their names."""
    stored = trained_on.get("features") if isinstance(trained_on, dict) else None
    own = data.provenance.get("features")
    if stored is None or own is None or stored == own:
        return data
    names, wanted = own.split(", "), str(stored).split(", ")
    if sorted(names) != sorted(wanted) or len({*names}) < len(names) or len(names) != data.input_shape[0]:
        raise DataError(
            f"{data.name} has the columns {own}, and {run_directory} was trained on {stored}; give the same"
        )
    order = [names.index(name) for name in wanted]
    train, test = (replace(part, inputs=part.inputs[:, order]) for part in (data.train, data.test))
    return replace(data, train=train, test=test)


def evaluate_run(run_directory: Path, data: str, *, device: str = "cpu", data_root: str | None = None) -> Counts:
    """Correct answers of a finished run's final model on the test part of a data set."""
    classifier = on_device(load(run_directory), device)
    experiment = read_experiment(run_directory)
    named = load_named(experiment, data, data_root, min_classes=1)
    test = _as_in_training(run_directory, experiment, named)
    try:
        with one_thread():
            return count_correct(classifier, test.test, torch.device(device))
    except RuntimeError as error:
        raise DataError(
            f"the model of {run_directory} cannot read {data}, inputs {test.input_shape}: {error}"
        ) from error
