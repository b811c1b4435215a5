"""Reaching a Ray cluster, or starting one on this machine: within a bounded time, and ending only what was started."""

import logging
import os
import secrets
import socket
import subprocess
import sys
import tempfile

from spherefed.errors import ConfigError, EngineError

try:
    import ray
except ImportError as error:
    raise ConfigError("the ray engine needs Ray: pip install 'spherefed[ray]'") from error

LOOPBACK = "127.0.0.1"
LONGEST_TEMPORARY = 30
"""Characters of a folder below which Ray's sockets still have names that are short enough (107)."""
LISTENS_WITHIN = 5.0
"""Seconds for somebody to take the call at an address."""
CONNECTS_WITHIN = 45.0
"""Seconds for a cluster to let us in: Ray itself tries for 20 where the token is wrong, and for minutes elsewhere."""


class Cluster:
    """A connection to Ray: to the cluster at `address`, or to one of this process's own on this machine.

    A connection that the caller has already is used as it is, and left open.
    """

    def __init__(self, address: str | None, workers: int) -> None:
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._ours = not ray.is_initialized()
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        if not self._ours:
            return
        if address is None:
            self._start(workers or len(os.sched_getaffinity(0)))
        else:
            _join(address)

    @property
    def num_cpus(self) -> int:
        return max(1, int(ray.cluster_resources().get("CPU", 1)))

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        if self._ours:
            ray.shutdown()
        if self._scratch is not None:
            self._scratch.cleanup()

    def _start(self, num_cpus: int) -> None:
        # A token of its own, or Ray would write one to the home; once per process, because Ray reads it once.
        if "RAY_AUTH_TOKEN_PATH" not in os.environ:
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        folder = tempfile.gettempdir()
        self._scratch = tempfile.TemporaryDirectory(
            prefix="sf-ray-", dir=folder if len(folder) < LONGEST_TEMPORARY else "/tmp", ignore_cleanup_errors=True
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
            raise EngineError(f"a local Ray could not be started: {one_line(error)}") from error


def _join(address: str) -> None:
    """Connect to a running cluster; every way in which that fails is one line.

    Ray may try for minutes and may end the process, so that another process tries first.
    """
    _check_somebody_listens(address)
    try:
        tried = subprocess.run(
            [sys.executable, "-c", TRY, address], capture_output=True, text=True, timeout=CONNECTS_WITHIN, check=False
        )
    except subprocess.TimeoutExpired:
        raise EngineError(
            f"no Ray cluster answered at {address} within {CONNECTS_WITHIN:.0f} s; {HOW_TO_START}"
        ) from None
    if tried.returncode != 0:
        raise EngineError(f"the Ray cluster at {address} cannot be used: {_why(tried.stdout or tried.stderr)}")
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        raise EngineError(f"the Ray cluster at {address} cannot be used: {one_line(error)}") from error


TRY = """
import logging, sys, traceback
import ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.CRITICAL)
except BaseException as error:
    print("".join(traceback.format_exception(error)) if "Auth" in repr(error.__cause__) else error)
    sys.exit(1)
"""
HOW_TO_START = "start one with `ray start --head`"


def _check_somebody_listens(address: str) -> None:
    if address == "auto":  # the cluster of this machine: Ray knows where
        return
    host, colon, port = address.rpartition(":")
    if not colon or not host or "/" in host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ConfigError(f"address must be HOST:PORT of a Ray cluster, or auto for this machine's; got {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=LISTENS_WITHIN).close()
    except OSError as error:
        raise EngineError(f"no Ray cluster is at {address}: {error.strerror or error}; {HOW_TO_START}") from error


def _why(said: str) -> str:
    if "AuthToken" in said or "AuthenticationError" in said:
        return "it wants its token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
    return one_line(said)


def one_line(said: object) -> str:
    """What Ray said in several lines, in one."""
    return " ".join(str(said).split()) or type(said).__name__


def last_line(said: object) -> str:
    """The end of what Ray said: of a traceback, the error itself."""
    return next((line.strip() for line in reversed(str(said).splitlines()) if line.strip()), type(said).__name__)
