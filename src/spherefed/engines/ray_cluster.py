"""Connect to a Ray cluster or start one on this machine, within a bounded time. Only a started cluster is ended."""

import logging
import os
import secrets
import socket
import subprocess
import sys
import tempfile

from spherefed.errors import ConfigError, EngineError, install_extra

try:
    import ray
except ImportError as error:
    raise ConfigError(f"the ray engine needs Ray: {install_extra('ray')}") from error

LOOPBACK = "127.0.0.1"
MAX_TEMP_PATH_LENGTH = 30
"""Characters. In a longer temporary folder the paths of Ray's sockets exceed the limit of 107 characters."""
TCP_TIMEOUT = 5.0
"""Seconds for a TCP connection to the address."""
CONNECT_TIMEOUT = 45.0
"""Seconds to connect to a cluster. Ray itself tries for 20 s with a wrong token, and for minutes otherwise."""


class Cluster:
    """A connection to Ray: to the cluster at `address`, or to a new one on this machine.

    If this process is already connected to Ray, that connection is used and stays open.
    """

    def __init__(self, address: str | None, workers: int) -> None:
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._owns_connection = not ray.is_initialized()
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        if not self._owns_connection:
            return
        if address is None:
            self._start(workers or len(os.sched_getaffinity(0)))
        else:
            _join(address)

    @property
    def num_cpus(self) -> int:
        return max(1, int(ray.cluster_resources().get("CPU", 1)))

    def close(self) -> None:
        """Disconnect from the cluster, and end it if it was started here."""
        if self._owns_connection:
            ray.shutdown()
        if self._scratch is not None:
            self._scratch.cleanup()

    def _start(self, num_cpus: int) -> None:
        # Without a token Ray would write one to the home directory. Set once per process, because Ray reads it once.
        if "RAY_AUTH_TOKEN_PATH" not in os.environ:
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        folder = tempfile.gettempdir()
        self._scratch = tempfile.TemporaryDirectory(
            prefix="sf-ray-", dir=folder if len(folder) < MAX_TEMP_PATH_LENGTH else "/tmp", ignore_cleanup_errors=True
        )
        try:
            ray.init(
                address="local",
                num_cpus=num_cpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address=LOOPBACK,
                _temp_dir=self._scratch.name,
            )
        except Exception as error:
            self.close()
            raise EngineError(f"could not start Ray on this machine: {one_line(error)}") from error


def _join(address: str) -> None:
    """Connect to a running cluster; every failure is an error of one line.

    Ray may try for minutes and may end the process, so a child process tries first.
    """
    _check_reachable(address)
    try:
        trial = subprocess.run(
            [sys.executable, "-c", TRIAL, address], capture_output=True, text=True, timeout=CONNECT_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise EngineError(
            f"no Ray cluster answered at {address} within {CONNECT_TIMEOUT:.0f} s; {HOW_TO_START}"
        ) from None
    if trial.returncode != 0:
        raise EngineError(f"cannot use the Ray cluster at {address}: {_cause(trial.stdout or trial.stderr)}")
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        raise EngineError(f"cannot use the Ray cluster at {address}: {one_line(error)}") from error


TRIAL = """
import logging, sys, traceback
import ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.CRITICAL)
except BaseException as error:
    print("".join(traceback.format_exception(error)) if "Auth" in repr(error.__cause__) else error)
    sys.exit(1)
"""
HOW_TO_START = "start one with `ray start --head`"


def _check_reachable(address: str) -> None:
    if address == "auto":  # the cluster of this machine, which Ray finds itself
        return
    host, colon, port = address.rpartition(":")
    if not colon or not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(
            f"address must be HOST:PORT of a Ray cluster, or auto for the one on this machine; got {address!r}"
        )
    try:
        socket.create_connection((host, int(port)), timeout=TCP_TIMEOUT).close()
    except OSError as error:
        raise EngineError(f"no Ray cluster at {address}: {error.strerror or error}; {HOW_TO_START}") from error


def _cause(output: str) -> str:
    if "AuthToken" in output or "AuthenticationError" in output:
        return "it requires its token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
    return one_line(output)


def one_line(message: object) -> str:
    """Ray's message of several lines in one line."""
    return " ".join(str(message).split()) or type(message).__name__


def last_line(message: object) -> str:
    """The last line of Ray's message: in a traceback, the error itself."""
    return next((line.strip() for line in reversed(str(message).splitlines()) if line.strip()), type(message).__name__)
