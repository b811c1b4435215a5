"""SphereFed, Fig. 3 as a number: how well do the features of two clients' local models agree, class by class?

The figure shows t-SNE maps of one class. A map has no number to test, so the measure here is the mean over classes of
the cosine between the two clients' mean features of the class, after each client's mean over all classes is removed.
"""

import torch
from torch import Tensor
from torch.nn import functional

from spherefed.assembly import assemble
from spherefed.errors import RunError
from spherefed.experiment import read_experiment
from spherefed.runs.directory import RunDirectory
from spherefed.runs.inspection import local_features
from spherefed.runs.runner import Engine
from spherefed.server.federation import train_request

WHEN = 0.9
"""The figure shows round 90 of 100."""


def local_alignment(directory: RunDirectory, engine: Engine) -> float:
    """Agreement of the local models of the two largest clients of a finished run.

    Deviation: the clients train from the final model, with the learning rate of round 0.9 · T, because a run does not
    keep the model of that round.
    """
    experiment = read_experiment(directory.path)
    assembly = assemble(experiment, device=engine.device, data_root=engine.data_root)
    checkpoint = directory.round_log(experiment).newest_checkpoint()
    if checkpoint is None:
        raise RunError(f"{directory.path} has no checkpoint to take local models from")
    round_index = min(experiment.rounds - 1, int(WHEN * experiment.rounds))
    request = train_request(assembly.plan(), round_index, checkpoint.model, checkpoint.server_state)
    sizes = assembly.partition.sizes
    largest = sorted(range(len(sizes)), key=lambda client: -sizes[client])[:2]
    first, second = local_features(assembly, request, largest, range(assembly.dataset.num_classes))
    return class_alignment(first.features, second.features, first.labels)


def class_alignment(first: Tensor, second: Tensor, labels: Tensor) -> float:
    """Mean over classes of the cosine between centred class means of features (n, l).

    >>> z = torch.eye(3)
    >>> round(class_alignment(z, z, torch.tensor([0, 1, 2])), 6)
    1.0
    """
    means = []
    for features in (first.double(), second.double()):
        rows = torch.stack([features[labels == number].mean(dim=0) for number in sorted(set(labels.tolist()))])
        means.append(rows - rows.mean(dim=0))
    return float(functional.cosine_similarity(means[0], means[1]).mean())
