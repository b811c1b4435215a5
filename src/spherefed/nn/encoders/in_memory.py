"""The encoder of an experiment whose caller passed a module: identified by the digest of its initial weights."""

import copy
import hashlib
import re
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from spherefed.errors import ModelError
from spherefed.tensors import digest


@dataclass(frozen=True, kw_only=True, slots=True)
class InMemoryEncoder:
    """A module that the caller passes as `encoder=`; every seed starts from its weights."""

    kind: ClassVar[str] = "in-memory"
    sha256: str
    """Of names, shapes and values of its initial parameters and buffers."""
    module: str = ""
    """The class of the module, for readers."""

    @staticmethod
    def of(module: nn.Module) -> "InMemoryEncoder":
        return InMemoryEncoder(sha256=digest(module.state_dict()), module=type(module).__qualname__)

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        raise ModelError(
            f"the encoder {self.module} was passed as a module, which no file holds: pass encoder= again, or name its "
            "class in the experiment, model.encoder.kind = 'package.module:Name'"
        )

    def copy(self, given: nn.Module) -> nn.Module:
        """A copy of the module, which must have the weights that the experiment began with."""
        found = digest(given.state_dict())
        if found != self.sha256:
            raise ModelError(
                f"encoder= has weights with SHA-256 {found[:12]}…, the experiment's has {self.sha256[:12]}…; "
                "pass the module as it was before training"
            )
        return copy.deepcopy(given)


def structure_digest(module: nn.Module) -> str:
    """SHA-256 of the layers as torch prints them, without addresses in memory; what `forward` computes is not in it.

    >>> structure_digest(nn.Dropout(0.1)) == structure_digest(nn.Dropout(0.2))
    False
    """
    return hashlib.sha256(re.sub(r" at 0x[0-9a-fA-F]+", "", repr(module)).encode()).hexdigest()
