"""Encoders by name: frozen dataclasses whose `build(input_shape)` makes an nn.Module from inputs to (n, l) features."""

from spherefed.nn.encoders.mlp import Mlp

Encoder = Mlp

__all__ = ["Encoder", "Mlp"]
