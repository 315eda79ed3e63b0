# SPDX-License-Identifier: MIT
"""Small pictures, by Pillow: the halves are made in two threads, joined and stored.

Both halves take as long (a parallel tie), so making one of them faster gains nothing, or
little; Pillow releases the GIL. See turns.py for the arguments.
"""

from __future__ import annotations

import io
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from PIL import Image
from turns import Faster, Turns, remembered

SIZE, SMALL = (2400, 1600), (600, 800)
PROGRESS = "__main__:store"
ours = sys.modules[__name__]
# Their delays must not hold the GIL, because their work does not.
WAITS = ("__main__:left_half", "__main__:right_half")
FASTER = {
    "__main__:left_half": Faster(
        ours, "left_half", lambda real: remembered(real, lambda _: "left")
    ),
    "__main__:right_half": Faster(
        ours, "right_half", lambda real: remembered(real, lambda _: "right")
    ),
    "__main__:store": Faster(
        ours, "store", lambda real: remembered(real, lambda *_: "stored")
    ),
}


def left_half(picture: Image.Image) -> Image.Image:
    return picture.resize(SMALL, Image.Resampling.LANCZOS, (0, 0, 1200, 1600))


def right_half(picture: Image.Image) -> Image.Image:
    return picture.resize(SMALL, Image.Resampling.LANCZOS, (1200, 0, 2400, 1600))


def store(left: Image.Image, right: Image.Image) -> bytes:
    whole = Image.new("RGB", (2 * SMALL[0], SMALL[1]))
    whole.paste(left, (0, 0))
    whole.paste(right, (SMALL[0], 0))
    file = io.BytesIO()
    whole.save(file, "JPEG", quality=85)
    return file.getvalue()


def main() -> None:
    turns = Turns(FASTER)
    picture = Image.frombytes("RGB", SIZE, os.urandom(3 * SIZE[0] * SIZE[1]))
    with ThreadPoolExecutor(2) as pool:
        while turns.unit():
            left = pool.submit(lambda: left_half(picture))
            right = pool.submit(lambda: right_half(picture))
            store(left.result(), right.result())


if __name__ == "__main__":
    main()
