"""A reference row: every client trains alone, as long as in the federation, and nothing is averaged."""

from collections.abc import Generator
from statistics import fmean

from spherefed.assembly import assemble
from spherefed.client.evaluation import global_accuracy
from spherefed.client.handle import handle
from spherefed.engines.activity import Activity
from spherefed.experiment import Experiment
from spherefed.messages import ModelState, TrainReply
from spherefed.runs.runner import Engine, Progress
from spherefed.server.federation import train_request


def local_only_rounds(
    experiment: Experiment, engine: Engine, activity: Activity
) -> Generator[Progress, None, float | None]:
    """Yields after every round; returns the mean over clients of their models' accuracy on the global test set.

    Rounds, local epochs and learning rates are those of the experiment; every client starts a round from its own
    model of the round before. The mean is None if nobody has data. `activity` says which clients are done.
    """
    assembly = assemble(experiment, device=engine.device, data_root=engine.data_root)
    plan, clients, start = assembly.plan(), assembly.clients, assembly.initial()
    models = {number: start for number, part in enumerate(clients.parts) if len(part)}
    for t in range(plan.rounds):
        activity.begin(train_request(plan, t, start, {}), [*models], clients.parts)
        losses = []
        for number, model in models.items():
            ((reply, _),) = handle([clients[number]], train_request(plan, t, model, {}), [None])
            assert isinstance(reply, TrainReply)
            params = {name: value + reply.delta[name] for name, value in model.params.items()}
            models[number] = ModelState(params, reply.buffers, model.head)
            losses.append(reply.loss)
            activity.advance([number], clients.parts)
        yield Progress(t, plan.rounds, fmean(losses) if losses else 0.0, None)
    each = [global_accuracy(assembly.local_model, model, assembly.test) for model in models.values()]
    found = [accuracy for accuracy in each if accuracy is not None]
    return fmean(found) if found else None
