"""All errors that users can cause, in one tree.

    SpherefedError
    ├── ConfigError        an argument or a value of an experiment is not allowed
    ├── DataError          examples are missing or damaged, or do not fit the model
    ├── ModelError         a network cannot be wrapped, or does not fit the tensors it receives
    ├── CalibrationError   statistics cannot be added, subtracted or solved
    │   └── NothingMeasuredError   the clients together have too little for a head
    ├── ClientError        a client cannot answer a request; the server records it as a rejection
    ├── EngineError        processes or a cluster cannot be started or reached, or fail
    ├── FederationError    too few clients answer a round, sites disagree, or the server is not reachable
    └── RunError           a run directory is missing or damaged, or belongs to another experiment

Each message states the given value, the allowed values and what to do. The command line prints the message as one line.
It exits with code 1 after a CalibrationError, ClientError, EngineError or FederationError, which happen while something
runs, and with code 2 after the others, which the input causes.
"""

from collections.abc import Sequence
from typing import Any


class SpherefedError(Exception):
    """Base class of all errors that this package raises on purpose."""

    rejected: Sequence[Any] = ()
    """Replies that were rejected before the error ended a round; the run records them."""


class ConfigError(SpherefedError, ValueError):
    """An argument or a value of an experiment is not allowed."""


class DataError(SpherefedError, ValueError):
    """Examples are missing or damaged, or do not fit the model."""


class ModelError(SpherefedError, ValueError):
    """A network cannot be wrapped, or does not fit the tensors it receives."""


class CalibrationError(SpherefedError, ValueError):
    """Statistics cannot be added, subtracted or solved."""


class NothingMeasuredError(CalibrationError):
    """The clients together have too little to compute a head from, such as no example; no single client caused it."""


class ClientError(SpherefedError, RuntimeError):
    """A client cannot answer a request; the server records it as a rejection."""


class EngineError(SpherefedError, RuntimeError):
    """Processes or a cluster cannot be started or reached, or fail."""


class FederationError(SpherefedError, RuntimeError):
    """Too few clients answer a round, sites disagree, or the server is not reachable."""


class RunError(SpherefedError, RuntimeError):
    """A run directory is missing or damaged, or belongs to another experiment."""


def install_extra(extra: str) -> str:
    """What to do if packages of an extra are missing, as the end of a message; true however spherefed was installed.

    >>> install_extra("ray")
    "install the extra 'ray' of spherefed, for example with pip install -e '.[ray]' in its checkout"
    """
    return f"install the extra {extra!r} of spherefed, for example with pip install -e '.[{extra}]' in its checkout"
