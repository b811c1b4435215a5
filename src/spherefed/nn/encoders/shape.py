"""Which images an encoder takes."""

from spherefed.errors import ConfigError


def image_scale(kind: str, input_shape: tuple[int, ...]) -> int:
    """TIN_S of SphereFed, Tables 12-15: 1 for images of 32×32 (CIFAR), 2 for 64×64 (TinyImageNet), or a ConfigError.

    >>> image_scale("resnet18", (3, 64, 64))
    2
    """
    scales = {(32, 32): 1, (64, 64): 2}
    if len(input_shape) != 3 or input_shape[0] < 1 or input_shape[1:] not in scales:
        raise ConfigError(
            f"encoder {kind!r} takes inputs of shape (channels, 32, 32) or (channels, 64, 64), got {input_shape}; "
            f"resize the images, or use encoder 'smallnet' for other images and 'mlp' for anything else"
        )
    return scales[input_shape[1], input_shape[2]]
