"""Images of any mode become RGB."""

import pytest

from spherefed.data.images import decode_image
from support.data_files import (
    image_bytes,
)


@pytest.mark.parametrize("mode", ["L", "RGBA", "RGB"])
def test_images_of_any_mode_become_rgb(mode):
    assert decode_image(image_bytes(mode=mode, kind="PNG"), "x").shape == (3, 64, 64)
