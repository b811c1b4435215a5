"""Decode an image file into (3, height, width) bytes. Greyscale images are converted to RGB, 16 bits to 8."""

import io
import warnings

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from spherefed.errors import DataError

MAX_PIXELS = 4096 * 4096
SUFFIXES = frozenset([".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"])
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Those of the suffixes, whatever the suffix of a file. Pillow knows more, and runs Ghostscript to read PostScript."""
SIXTEEN_BITS = ("PNG", "PPM")
"""Formats whose greyscale images have at most 16 bits, also if Pillow's mode is that of 32."""


def decode_image(
    content: bytes, where: str, shape: tuple[int, int] | None = None, advice: str = ""
) -> "NDArray[np.uint8]":
    """Pixels as (3, height, width). If `shape` is (height, width), other sizes raise DataError before decoding.

    `advice` ends the message about another size.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about metadata; damaged pixels raise errors
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                width, height = image.size
                if shape is not None and (height, width) != shape:
                    raise DataError(f"{where} is {height}×{width} pixels, the others are {shape[0]}×{shape[1]}{advice}")
                if height * width > MAX_PIXELS:
                    raise DataError(f"{where} is {height}×{width} pixels; at most {MAX_PIXELS} pixels are read")
                pixels = np.asarray(_eight_bits(image, where).convert("RGB"))
    except DataError:
        raise
    except Exception as error:  # Pillow's decoders raise many types of exceptions on damaged files
        reason = str(error).partition(" <_io.")[0]  # Pillow names the buffer, not the file
        raise DataError(f"{where} is not a readable image: {reason}; replace or remove the file") from error
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _eight_bits(image: Image.Image, where: str) -> Image.Image:
    """The image with 8 bits per channel; Pillow converts greyscale images with more bits to white and black."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in SIXTEEN_BITS):
        return Image.fromarray(((np.asarray(image).astype(np.int64) + 128) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise DataError(
            f"{where} has {'floats' if image.mode == 'F' else '32-bit or signed integers'} as pixels, which have no "
            "fixed range; save the image with 8 or 16 bits per channel, or all images as arrays:FILE.npz"
        )
    return image
