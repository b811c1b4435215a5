"""The configuration of a site, which it never sends to the server."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spherefed.deployment.limits import SiteLimits
from spherefed.errors import ConfigError
from spherefed.schema import from_plain


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """A site's own configuration (Flower's node config)."""

    client: int
    """The number of this site's client."""
    site: str = ""
    """The name of the site, for messages."""
    data: str = ""
    """The only data that this site reads: its own, `folder:PATH` or `arrays:FILE.npz`, or the name of a data set of
    which every site has a copy."""
    data_root: str = ""
    """The folder of data sets and decoded images; empty: $SPHEREFED_DATA."""
    held_out: float = 0.2
    """Fraction of its own examples that this site keeps from training, for evaluation, whatever the experiment says."""
    client_state: str = ""
    """The folder of the client state, which the client keeps between rounds."""
    record: str = ""
    """The file in which this site records its hold-out and what it has answered; required with own data."""
    device: str = "cpu"
    allow: str = ""
    """Components outside the package that an experiment may use here, `package.module:Name`, separated by commas."""
    limits: SiteLimits = field(default_factory=SiteLimits)

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> "Site":
        """From Flower's node config, which has no tables: `limits` is JSON."""
        try:
            tables = {"limits": json.loads(str(config["limits"]))} if "limits" in config else {}
            site: Site = from_plain(Site, {**config, **tables})
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"the site's config: {error}") from error
        return site

    @property
    def allowed(self) -> frozenset[str]:
        """The components that experiments may use here."""
        return frozenset(name.strip() for name in self.allow.split(",") if name.strip())
