"""The image sizes that the paper's encoders accept."""

from collections.abc import Sequence

from spherefed.errors import ConfigError


def image_scale(kind: str, input_shape: tuple[int, ...]) -> int:
    """TIN_S of SphereFed, Tables 12-15: 1 for images of 32×32 (CIFAR), 2 for 64×64 (TinyImageNet), or a ConfigError.

    >>> image_scale("resnet18", (3, 64, 64))
    2
    """
    check_image(kind, input_shape, sides=(32, 64))
    return input_shape[1] // 32


def check_image(kind: str, input_shape: tuple[int, ...], *, sides: Sequence[int]) -> None:
    """Raise a ConfigError unless inputs are square images with one of these sides."""
    if len(input_shape) != 3 or input_shape[0] < 1 or input_shape[1:] not in [(side, side) for side in sides]:
        *shapes, last = (f"(channels, {side}, {side})" for side in sides)
        raise ConfigError(
            f"encoder {kind!r} needs inputs of shape {', '.join(shapes)} or {last}, got {input_shape}; "
            f"resize the images, or use encoder 'smallnet' for other images and 'mlp' for anything else"
        )
