"""Clients that exist: each hospital has its own data, so nothing is partitioned."""

import numpy as np

import spherefed as sf


def hospital(size: int, sick: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two measurements per patient; the share of sick patients differs between hospitals."""
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random(size) < sick, "sick", "healthy")
    return rng.normal(size=(size, 2)) + 2.0 * (labels == "sick")[:, None], labels


clients = [hospital(120, 0.9, 0), hospital(60, 0.5, 1), hospital(200, 0.1, 2)]
experiment = sf.recipe("digits", method="fedavg+spherefed", rounds=5, local={"lr": 0.5})  # better: sf.tune
result = sf.run(experiment, clients=clients, test=hospital(300, 0.5, 3), progress=False)
print(result, result.measures["calibrated"])

# The same from one table with a column that names the client.
table = {
    "image": np.concatenate([x for x, _ in clients]),
    "label": np.concatenate([y for _, y in clients]),
    "hospital": np.repeat(["north", "south", "west"], [len(y) for _, y in clients]),
}
by_column = sf.recipe("digits", rounds=5, partition={"kind": "by-column", "column": "hospital"})
print(sf.run(by_column, data=table, progress=False))
