"""A reference for comparisons: every client trains alone, as long as in the federation, and nothing is averaged.

A folder keeps the clients' models after the last whole round, so that an interrupted training continues, and at the
end their mean accuracy.
"""

from collections.abc import Generator
from pathlib import Path
from statistics import fmean

from spherefed.assembly import assemble
from spherefed.client.evaluation import global_accuracy
from spherefed.client.handle import handle
from spherefed.engines.activity import Activity
from spherefed.errors import RunError
from spherefed.experiment import Experiment
from spherefed.files import read_tensors, write_tensors
from spherefed.messages import ModelState, TrainReply
from spherefed.runs.directory import RunDirectory, read_json, read_object, write_json
from spherefed.runs.environment import NUMERICS_VERSION
from spherefed.runs.runner import Engine, Progress
from spherefed.server.federation import train_request
from spherefed.tensors import add_prefix, strip_prefix

MODELS, RESULT = "models.safetensors", "local_only.json"
Models = dict[int, ModelState]
"""Client → its own model; clients without data have none."""


def train_alone(experiment: Experiment, folder: Path, *, engine: Engine, activity: Activity) -> Generator[Progress]:
    """Train every client alone, from where `folder` has left off; yields after every round.

    Rounds, local epochs and learning rates are those of the experiment; every client starts a round from its own
    model of the round before. `activity` says which clients are done.
    """
    with RunDirectory(folder).locked():
        if not is_trained_alone(folder):
            yield from _train_rounds(experiment, folder, engine, activity)
        (folder / MODELS).unlink(missing_ok=True)


def _train_rounds(experiment: Experiment, folder: Path, engine: Engine, activity: Activity) -> Generator[Progress]:
    assembly = assemble(experiment, device=engine.device, data_root=engine.data_root)
    plan, clients, start = assembly.plan(), assembly.clients, assembly.initial()
    models, first = _saved(experiment, folder)
    models = models or {number: start for number, part in enumerate(clients.parts) if len(part)}
    for t in range(first, plan.rounds):
        activity.begin(train_request(plan, t, start, {}), [*models], clients.parts)
        losses = []
        for number, model in models.items():
            ((reply, _),) = handle([clients[number]], train_request(plan, t, model, {}), [None])
            assert isinstance(reply, TrainReply)
            params = {name: value + reply.delta[name] for name, value in model.params.items()}
            models[number] = ModelState(params, reply.buffers, model.head)
            losses.append(reply.loss)
            activity.advance([number], clients.parts)
        _save(experiment, folder, models, t + 1)
        yield Progress(t, plan.rounds, fmean(losses) if losses else 0.0, None)
    each = [global_accuracy(assembly.local_model, model, assembly.test) for model in models.values()]
    found = [accuracy for accuracy in each if accuracy is not None]
    write_json(folder / RESULT, {"accuracy": fmean(found) if found else None, "numerics_version": NUMERICS_VERSION})


def is_trained_alone(folder: Path) -> bool:
    """Whether the clients in this folder have finished, with the present numerics."""
    return (folder / RESULT).exists() and read_object(folder / RESULT).get("numerics_version") == NUMERICS_VERSION


def local_only_accuracy(folder: Path) -> float | None:
    """The mean over clients of their models' accuracy on the global test set; None if nobody has data."""
    found: float | None = read_json(folder / RESULT)["accuracy"]
    return found


def _save(experiment: Experiment, folder: Path, models: Models, rounds: int) -> None:
    tensors = {k: t for number, model in models.items() for k, t in add_prefix(str(number), model.tensors()).items()}
    write_tensors(folder / MODELS, tensors, _origin(experiment) | {"rounds": str(rounds)})


def _origin(experiment: Experiment) -> dict[str, str]:
    return {"experiment": experiment.digest(), "numerics_version": str(NUMERICS_VERSION)}


def _saved(experiment: Experiment, folder: Path) -> tuple[Models, int]:
    """The models in the folder and how many rounds they have been trained."""
    path = folder / MODELS
    if not path.exists():
        return {}, 0
    try:
        tensors, metadata = read_tensors(path)
        numbers = sorted({int(name.partition(".")[0]) for name in tensors})
        models = {n: ModelState.from_tensors(strip_prefix(str(n), tensors)) for n in numbers}
        rounds = int(metadata.pop("rounds"))
    except (RunError, ValueError, KeyError) as error:
        raise RunError(f"{path} cannot be read ({error}); remove it to train these clients again") from error
    if metadata != _origin(experiment):
        raise RunError(
            f"{path} belongs to another experiment or version; remove it to train these clients again, or use "
            "another folder"
        )
    return models, rounds
