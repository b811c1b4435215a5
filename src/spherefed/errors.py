"""Every error a user can cause, in one tree.

    SpherefedError
    ├── ConfigError        a value of an experiment, or an argument, that is not allowed
    ├── DataError          examples that are missing, damaged or do not fit the model
    ├── ModelError         a network that cannot be wrapped or does not fit what was sent
    ├── CalibrationError   statistics that cannot be added, subtracted or solved
    ├── ClientError        work that a client could not do; becomes a line of the ledger
    ├── EngineError        processes or a cluster that cannot be started or reached
    ├── FederationError    a round that too few answered, sites that disagree, a server that is not there
    └── RunError           a run directory that is missing, damaged or belongs to another experiment

Messages say what was given, what is allowed and what to do. The command line prints them as one line and exits with 2.
"""


class SpherefedError(Exception):
    """The root: catch this to catch everything this package raises on purpose."""


class ConfigError(SpherefedError, ValueError):
    """A value of an experiment, or an argument, that is not allowed."""


class DataError(SpherefedError, ValueError):
    """Examples that are missing, damaged or do not fit the model."""


class ModelError(SpherefedError, ValueError):
    """A network that cannot be wrapped, or does not fit what was sent."""


class CalibrationError(SpherefedError, ValueError):
    """Statistics that cannot be added, subtracted or solved."""


class ClientError(SpherefedError, RuntimeError):
    """Work that a client could not do; the server writes it into the run's ledger."""


class EngineError(SpherefedError, RuntimeError):
    """Processes or a cluster that cannot be started or reached."""


class FederationError(SpherefedError, RuntimeError):
    """A round that too few answered, sites that disagree, a server that is not there."""


class RunError(SpherefedError, RuntimeError):
    """A run directory that is missing, damaged or belongs to another experiment."""
