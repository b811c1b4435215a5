"""Encoders from outside the package: the protocol of a user's dataclass, and the adapter for a user's callable."""

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import nn

from spherefed.components import find_component
from spherefed.errors import ModelError
from spherefed.nn.encoders.resize import Resized, check_resize
from spherefed.schema import Options

PREPROCESSING = ("resize", "mean", "std")


class OwnEncoder(Protocol):
    """A user's encoder: a frozen dataclass whose fields are its hyper-parameters."""

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        """A module that computes features (n, l) from inputs (n, *input_shape)."""
        ...


@dataclass(frozen=True, slots=True)
class CallableEncoder:
    """Any callable that returns an nn.Module, for example the class of one, with its keyword arguments.

    A callable with a parameter `input_shape` also gets the shape of one input. The options `resize`, `mean` and `std`
    are those of the encoder's inputs, unless the callable has parameters of these names: images are resized inside the
    encoder, and normalized by this mean and std instead of the data's.
    """

    kind: str
    """`package.module:Name`."""
    options: Options = ()
    expected: ClassVar[str] = "a callable that returns an nn.Module, such as the class of one"

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        make, preprocessing = self._callable(), self._preprocessing()
        given = {name: option for name, option in self.options if name not in preprocessing}
        options = _with_shape(make, given, input_shape)
        if "resize" in preprocessing:
            check_resize(self.kind, preprocessing["resize"], input_shape)
        try:
            module = make(**options)
        except TypeError as error:
            names, own = ", ".join(options) or "no options", ", ".join(_parameters(make)) or "no options"
            raise ModelError(f"encoder {self.kind!r} cannot be built with {names}: {error}; it takes {own}") from error
        if not isinstance(module, nn.Module):
            raise ModelError(f"encoder {self.kind!r} returned a {type(module).__name__}; expected an nn.Module")
        return Resized(module, preprocessing["resize"]) if "resize" in preprocessing else module

    @property
    def mean(self) -> Any:
        """Of each channel of pixels between 0 and 1; empty: the data's own."""
        return self._preprocessing().get("mean", ())

    @property
    def std(self) -> Any:
        """Of each channel of pixels between 0 and 1; empty: the data's own."""
        return self._preprocessing().get("std", ())

    def _callable(self) -> Callable[..., Any]:
        found: Callable[..., Any] = find_component(self.kind, "model.encoder.kind", self.expected)
        return found

    def _preprocessing(self) -> dict[str, Any]:
        """Options about inputs that are not parameters of the callable."""
        given = {name: option for name, option in self.options if name in PREPROCESSING}
        own = _parameters(self._callable()) if given else ()
        return {name: option for name, option in given.items() if name not in own}


def _with_shape(make: Callable[..., Any], options: dict[str, Any], input_shape: tuple[int, ...]) -> dict[str, Any]:
    return {"input_shape": input_shape} | options if "input_shape" in _parameters(make) else options


def _parameters(make: Callable[..., Any]) -> Collection[str]:
    """The names of the parameters of a callable; none if it is written in C and has no signature."""
    try:
        return inspect.signature(make).parameters
    except (ValueError, TypeError):
        return ()
