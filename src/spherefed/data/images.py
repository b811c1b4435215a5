"""One image file → (3, height, width) bytes. Greyscale becomes RGB; whatever is not an image is refused by name."""

import io
import warnings

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from spherefed.errors import DataError

MAX_PIXELS = 4096 * 4096
SUFFIXES = frozenset([".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"])


def decode_image(content: bytes, where: str, shape: tuple[int, int] | None = None) -> "NDArray[np.uint8]":
    """Pixels as (3, height, width); with a shape (height, width) given, any other is refused before it is decoded."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about metadata; what matters here is raised
            with Image.open(io.BytesIO(content)) as image:
                width, height = image.size
                if shape is not None and (height, width) != shape:
                    raise DataError(f"{where} is {height}×{width} pixels, the others are {shape[0]}×{shape[1]}")
                if height * width > MAX_PIXELS:
                    raise DataError(f"{where} is {height}×{width} pixels; at most {MAX_PIXELS} pixels are read")
                pixels = np.asarray(image.convert("RGB"))
    except DataError:
        raise
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged files
        raise DataError(f"{where} is not a readable image: {error}") from error
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))
