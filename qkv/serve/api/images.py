"""Images in requests, in base64."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Sequence

from qkv.data.images import Pixels, open_picture, unpack
from qkv.errors import FileError
from qkv.serve.http.errors import ApiError
from qkv.serve.scheduling.served_model import ServedModel


async def decode_images(images: Sequence[str], served: ServedModel) -> list[Pixels]:
    """Decode images in a thread, one at a time, so that the request can be cancelled between two of them."""
    served.limits.check("texts", len(images), "images")
    return [await asyncio.to_thread(decode_image, image, served) for image in images]


def decode_image(image: str, served: ServedModel) -> Pixels:
    """Decode one image; its size is checked before its pixels are unpacked."""
    try:
        data = base64.b64decode(image.partition(",")[2] if image.startswith("data:") else image, validate=True)
    except ValueError:
        raise ApiError(400, "the image is not base64: send the bytes of a PNG or JPEG file in base64") from None
    try:
        picture = open_picture(io.BytesIO(data), "the image")
        served.limits.check("pixels", picture.width * picture.height, "pixels")
        return unpack(picture, served.config.image_size or 0, served.config.n_channels, "the image")
    except FileError:
        raise ApiError(400, "the image cannot be read: send a PNG or JPEG file in base64") from None
