"""SphereFed, Fig. 3: do the local models of two clients map a class to the same area?

The figure shows t-SNE maps of two classes. A map has no number to test, so two numbers go with it. *Alignment*: the
mean over classes of the cosine between the two clients' mean features of the class, after each client's mean over all
classes is removed. *Mixing*: twice the share of the other client's features among the nearest neighbours of an example
within its class; about 1 if the two clients' features lie in the same area, 0 if they form separate clusters.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from spherefed.assembly import assemble
from spherefed.errors import RunError
from spherefed.experiment import read_experiment
from spherefed.runs.directory import RunDirectory
from spherefed.runs.inspection import LocalFeatures, local_features
from spherefed.runs.runner import Engine
from spherefed.server.federation import train_request

WHEN = 0.9
"""The figure shows round 90 of 100."""
NEIGHBOURS = 10
CLASSES = (5, 7)
"""The two classes of a map; those that the paper names."""


def compare_local_models(directory: RunDirectory, engine: Engine, *, with_map: bool) -> dict[str, Any]:
    """Alignment and mixing of the local models of the two largest clients of a finished run, and a map of two classes.

    A single client is compared with itself. Numbers are None if a local model diverged. Deviation: the clients train
    from the final model, with the learning rate of round 0.9 · T, because a run does not keep the model of that round.
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
    found = local_features(assembly, request, largest, range(assembly.dataset.num_classes))
    first, second, labels = found[0].features, found[-1].features, found[0].labels
    if not (first.isfinite().all() and second.isfinite().all()):
        return {"alignment": None, "mixing": None, "map": None}
    unit = [replace(each, features=functional.normalize(each.features)) for each in found]
    numbers: dict[str, Any] = {
        "alignment": round(class_alignment(first, second, labels), 6),
        "mixing": round(class_mixing(unit[0].features, unit[-1].features, labels), 6),
    }
    return numbers | ({"map": feature_map(unit)} if with_map else {})


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


def class_mixing(first: Tensor, second: Tensor, labels: Tensor) -> float:
    """Mean over classes of twice the share of the other model's features among nearest neighbours.

    Neighbours are those of the same class, of both models, without the example itself and its image under the other
    model. If both models' features followed the same distribution, half of them would be the other model's.

    >>> z = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    >>> class_mixing(z, z, torch.zeros(40)), class_mixing(z, z + 100, torch.zeros(40))
    (1.0, 0.0)
    """
    shares = []
    for number in sorted(set(labels.tolist())):
        own, other = (features[labels == number].double() for features in (first, second))
        if len(own) > 1:
            shares.append((_share_of_other(own, other) + _share_of_other(other, own)) / 2)
    return 2 * fmean(shares)


def _share_of_other(own: Tensor, other: Tensor) -> float:
    """Mean over the rows of `own` (n, l): the part of its nearest neighbours that are rows of `other` (n, l)."""
    count = len(own)
    distances = torch.cdist(own, torch.cat([own, other]), compute_mode="donot_use_mm_for_euclid_dist")
    distances[:, :count].fill_diagonal_(torch.inf)
    distances[:, count:].fill_diagonal_(torch.inf)
    limit = distances.kthvalue(min(NEIGHBOURS, 2 * (count - 1)), dim=1).values
    is_near = distances <= limit[:, None]  # more than NEIGHBOURS if the last of them are equally far
    return float((is_near[:, count:].sum(dim=1) / is_near.sum(dim=1)).mean())


def feature_map(found: Sequence[LocalFeatures]) -> dict[str, Any]:
    """t-SNE of the features of two classes by the models of all given clients together, as plain data."""
    from sklearn.manifold import TSNE

    chosen = torch.isin(found[0].labels, torch.tensor(CLASSES))
    features = torch.cat([each.features[chosen] for each in found]).numpy()
    perplexity = min(30.0, (len(features) - 1) / 3)
    placed = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(features)
    return {
        "clients": [each.client for each in found],
        "labels": found[0].labels[chosen].tolist(),
        "points": [[round(float(x), 2), round(float(y), 2)] for x, y in placed],
    }
