"""The demo: scikit-learn's digits over ten clients with strong label skew."""

from spherefed.data.partition import Dirichlet
from spherefed.experiment import Data, Experiment, Model
from spherefed.nn.encoders import Mlp
from spherefed.training import LocalTraining


def digits() -> Experiment:
    """FedAvg, ten local epochs as in the paper; `methods` turns it into the other methods."""
    return Experiment(
        name="digits",
        rounds=20,
        data=Data(name="digits"),
        partition=Dirichlet(alpha=0.1, clients=10),
        model=Model(encoder=Mlp(widths=(128, 64))),
        local=LocalTraining(lr=0.1, epochs=10, batch_size=64),
    )
