"""Images of any mode become RGB with 8 bits."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from spherefed.data.images import SUFFIXES, decode_image
from spherefed.errors import DataError
from support.data_files import (
    image_bytes,
)


def stored(pixels: Any, kind: str) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, kind)
    return content.getvalue()


@pytest.mark.parametrize("mode", ["L", "RGBA", "RGB"])
def test_images_of_any_mode_become_rgb(mode):
    assert decode_image(image_bytes(mode=mode, kind="PNG"), "x").shape == (3, 64, 64)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_greyscale_of_16_bits_is_rounded_to_8(kind: str) -> None:
    grey = np.arange(256, dtype=np.uint16).reshape(16, 16) * 257
    grey[0, 1:4] = 128, 129, 65535  # 128/257 is below a half, 129/257 above
    decoded = decode_image(stored(grey, kind), "x")
    expected = np.rint(grey / 65535 * 255)
    assert all(np.array_equal(channel, expected) for channel in decoded)
    assert decoded[0, 0, 1:4].tolist() == [0, 1, 255]


def test_greyscale_of_16_bits_is_read_in_either_byte_order() -> None:
    grey = np.arange(256, dtype=np.uint16).reshape(16, 16) * 257
    content = io.BytesIO()
    Image.frombytes("I;16B", (16, 16), grey.astype(">u2").tobytes()).save(content, "TIFF")
    assert np.array_equal(decode_image(content.getvalue(), "x")[0], grey // 257)


@pytest.mark.parametrize(
    ("pixels", "word"), [(np.zeros((4, 4), np.float32), "floats"), (np.zeros((4, 4), np.int32), "32-bit .*integers")]
)
def test_pixels_without_a_range_are_rejected(pixels: Any, word: str) -> None:
    with pytest.raises(DataError, match=f"scan.tif has {word} as pixels.*save the image with 8 or 16 bits"):
        decode_image(stored(pixels, "TIFF"), "scan.tif")


def test_postscript_is_not_executed_whatever_its_suffix(monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[Any] = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *given: executed.append(given))
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    with pytest.raises(DataError, match=r"cat.png is not a readable image"):
        decode_image(postscript, "cat.png")
    assert not executed


def test_every_suffix_is_read() -> None:
    kinds = {Image.registered_extensions()[suffix] for suffix in SUFFIXES}
    pixels = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    assert all(decode_image(stored(pixels, kind), kind).shape == (3, 8, 8) for kind in kinds)
