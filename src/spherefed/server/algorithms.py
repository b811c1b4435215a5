"""Base algorithms as values.

An algorithm is a proximal strength, whether steps are normalised, a server optimizer, what is shared and what corrects
drift; FedAvg is the default of all of them. SphereFed is not an algorithm: it is head, loss and calibration on top of
any.
"""

from dataclasses import dataclass, field

from spherefed.client.corrections import Correction, DynamicRegularizer, ModelContrastive, Scaffold
from spherefed.errors import ConfigError
from spherefed.field_types import check_types
from spherefed.messages import Part
from spherefed.schema import DEFAULT_IN_DIGESTS, kind_of
from spherefed.server.aggregation import Weigh
from spherefed.server.optimizers import ServerAdagrad, ServerAdam, ServerOptimizer, ServerSgd, ServerYogi
from spherefed.server.robust import Aggregation, Mean

WEIGHED_ALIKE = ("scaffold", "feddyn")
"""Drift corrections that are published with equal weights for all clients."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm:
    """How clients are regularised, how their replies are weighted, and how the server steps."""

    prox_mu: float = 0.0
    """FedProx's μ: clients also minimise (μ/2)‖w − w_t‖²."""
    normalize_steps: bool = False
    """FedNova: divide each client's delta by its effective number of steps."""
    server: ServerOptimizer = field(default_factory=ServerSgd)
    """How the server turns the mean update into a step."""
    weigh: Weigh | None = field(default=None, metadata={DEFAULT_IN_DIGESTS: "examples"})
    """How replies are weighted: by examples, p_k = n_k / Σn, or all clients alike, 1 / |S|. none: as published,
    which is `clients` with a correction 'scaffold' or 'feddyn', and `examples` otherwise; the value is stored."""
    share: Part = "all"
    """The part of the model that is averaged; the rest stays with each client (LG-FedAvg: head, FedRep: encoder)."""
    correction: Correction | None = None
    """How client drift is corrected."""
    aggregation: Aggregation = field(default_factory=Mean)
    """How updates are aggregated: by their mean, or a rule that bounds what a few hostile clients can do."""

    def __post_init__(self) -> None:
        check_types(self, "algorithm")
        if self.weigh is None:
            alike = self.correction is not None and kind_of(self.correction) in WEIGHED_ALIKE
            object.__setattr__(self, "weigh", "clients" if alike else "examples")
        if not self.prox_mu >= 0:
            raise ConfigError(f"algorithm.prox_mu must not be negative, got {self.prox_mu}")
        if self.share != "all" and self.correction is not None:
            raise ConfigError(
                f"algorithm.correction {kind_of(self.correction)!r} needs share = 'all', got {self.share!r}"
            )
        if isinstance(self.correction, DynamicRegularizer) and not self.prox_mu:
            raise ConfigError("algorithm.correction 'feddyn' needs its α as prox_mu above 0, got 0; 0.01 is usual")
        if not isinstance(self.aggregation, Mean):
            self._check_robust(self.aggregation.kind)

    def _check_robust(self, kind: str) -> None:
        """Hostile clients choose their own weights and steps, so a robust rule uses neither."""
        if self.normalize_steps:
            raise ConfigError(
                f"algorithm.aggregation {kind!r} does not go with normalize_steps (FedNova), which divides updates by "
                "numbers that clients claim; use aggregation = 'mean'"
            )
        if self.weigh != "clients":
            raise ConfigError(
                f"algorithm.aggregation {kind!r} counts every client alike: set algorithm.weigh = 'clients', "
                f"got {self.weigh!r}"
            )

    @property
    def keeps_client_state(self) -> bool:
        """Whether clients keep a state between rounds."""
        return self.share != "all" or self.correction is not None


def fedavg() -> Algorithm:
    """McMahan et al. 2017: x⁺ = Σ p_k x_k."""
    return Algorithm()


def fedprox(mu: float) -> Algorithm:
    """Li et al. 2020: clients minimise f_k(w) + (μ/2)‖w − w_t‖²."""
    return Algorithm(prox_mu=mu)


def fednova(mu: float = 0.0) -> Algorithm:
    """Wang et al. 2020: deltas are divided by the effective number of local steps."""
    return Algorithm(normalize_steps=True, prox_mu=mu)


def fedavgm(momentum: float = 0.3, lr: float = 1.0) -> Algorithm:
    """FedOpt as the paper runs it: server SGD with momentum (torch's convention, see `ServerSgd`)."""
    return fedopt(ServerSgd(lr=lr, momentum=momentum))


def fedopt(server: ServerOptimizer) -> Algorithm:
    """Reddi et al. 2020: FedAvg whose mean delta goes through a server optimizer."""
    return Algorithm(server=server)


def fedadam(lr: float = 0.1, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> Algorithm:
    return fedopt(ServerAdam(lr=lr, beta1=beta1, beta2=beta2, tau=tau))


def fedyogi(lr: float = 0.1, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> Algorithm:
    return fedopt(ServerYogi(lr=lr, beta1=beta1, beta2=beta2, tau=tau))


def fedadagrad(lr: float = 0.1, beta1: float = 0.0, tau: float = 1e-3) -> Algorithm:
    return fedopt(ServerAdagrad(lr=lr, beta1=beta1, tau=tau))


def lg_fedavg() -> Algorithm:
    """Liang et al. 2020: the head is averaged, every client keeps its own encoder."""
    return Algorithm(share="head")


def fedrep() -> Algorithm:
    """Collins et al. 2021: the encoder is averaged, heads stay local; with `local.head_epochs` above 0."""
    return Algorithm(share="encoder")


def scaffold(lr: float = 1.0) -> Algorithm:
    """Karimireddy et al. 2020, option II, clients weighted alike as published."""
    return Algorithm(correction=Scaffold(), server=ServerSgd(lr=lr))


def feddyn(alpha: float = 0.01) -> Algorithm:
    """Acar et al. 2021, clients weighted alike as published."""
    return Algorithm(correction=DynamicRegularizer(), prox_mu=alpha)


def moon(mu: float = 1.0, temperature: float = 0.5) -> Algorithm:
    """Li et al. 2021."""
    return Algorithm(correction=ModelContrastive(mu=mu, temperature=temperature))
