"""Pictures of pages, the same on each run, and their comparison, which the browser does.

Fonts are DejaVu's, which come with Debian's Chromium; motion is off; the footer, which has the
version, is hidden. The comparison counts pixels, over the picture and in its densest block, so
that a small change is not lost in a large picture.
"""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.servers.web import Browser
from harness.servers.web_scenes import Scene

ROOT = Path(__file__).resolve().parents[3]
SHOWN = ROOT / "docs" / "images"
STORED = ROOT / "tests" / "data" / "pictures"
FONTS = ("DejaVu Sans", "DejaVu Sans Mono")
PICTURE_BYTES_MAX = 80_000

# Repeated runs on one machine differ in no pixel by this level; a stored palette stays below it.
# A difference of colour that counts, of 255: pale backgrounds of two states differ by 30.
LEVEL = 14
BLOCK = 16
# Pixels that may differ in the whole picture and in one block of 256: an edge of a glyph that
# another build of the font library places otherwise, and no more.
SHARE_MAX = 0.0005
BLOCK_PIXELS_MAX = 24
PALETTE_DISTANCE_MAX = LEVEL - 4

CALM = """
const sheet = new CSSStyleSheet();
sheet.replaceSync(`
  *, *::before, *::after { transition: none !important; animation: none !important;
    caret-color: transparent !important; }
  body { font-family: "DejaVu Sans", sans-serif !important; }
  code, pre, .code { font-family: "DejaVu Sans Mono", monospace !important; }
  footer { visibility: hidden; }
`);
document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
document.activeElement?.blur();
return document.fonts.ready.then(
  () => arguments[0].every((font) => document.fonts.check(`12px "${font}"`)));
"""
READ = """
const read = async (data) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const image = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  const canvas = new OffscreenCanvas(image.width, image.height);
  const pen = canvas.getContext("2d");
  pen.drawImage(image, 0, 0);
  return pen.getImageData(0, 0, image.width, image.height);
};
"""
PIXELS = (
    READ
    + """
return read(arguments[0]).then(({ width, height, data }) => {
  const bytes = new Uint8Array(width * height * 3);
  for (let i = 0, j = 0; i < data.length; i += 4) {
    bytes[j++] = data[i];
    bytes[j++] = data[i + 1];
    bytes[j++] = data[i + 2];
  }
  let text = "";
  for (let i = 0; i < bytes.length; i += 30000) {
    text += String.fromCharCode(...bytes.subarray(i, i + 30000));
  }
  return [width, height, btoa(text)];
});
"""
)
COMPARE = (
    READ
    + """
const [first, second, level, side] = arguments;
return Promise.all([read(first), read(second)]).then(([a, b]) => {
  if (a.width !== b.width || a.height !== b.height) {
    return { size: [a.width, a.height, b.width, b.height] };
  }
  const across = Math.ceil(a.width / side);
  const blocks = new Map();
  let count = 0;
  for (let i = 0; i < a.data.length; i += 4) {
    const most = Math.max(Math.abs(a.data[i] - b.data[i]), Math.abs(a.data[i + 1] - b.data[i + 1]),
      Math.abs(a.data[i + 2] - b.data[i + 2]));
    if (most < level) continue;
    count += 1;
    const at = i / 4;
    const block = Math.floor(Math.floor(at / a.width) / side) * across
      + Math.floor((at % a.width) / side);
    blocks.set(block, (blocks.get(block) || 0) + 1);
  }
  let worst = 0, where = 0;
  for (const [block, found] of blocks) if (found > worst) { worst = found; where = block; }
  return { share: count / (a.width * a.height), count, worst,
    at: [(where % across) * side, Math.floor(where / across) * side] };
});
"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Difference of two pictures.

    Attributes:
        count: Number of pixels that differ.
        share: Their share of all.
        block: Their number in the densest block of 16 by 16 pixels.
        at: Left upper corner of that block, in pixels.
        size: Both sizes, if they differ; otherwise empty.
    """

    count: int = 0
    share: float = 0.0
    block: int = 0
    at: tuple[int, int] = (0, 0)
    size: tuple[int, ...] = ()

    @property
    def is_small(self) -> bool:
        """Return whether the difference is too small to be seen."""
        return not self.size and self.share <= SHARE_MAX and self.block <= BLOCK_PIXELS_MAX


def path_of(name: str, scene: Scene) -> Path:
    """Return where the stored picture of a scene is."""
    return (SHOWN if scene.is_shown else STORED) / f"{name}.png"


def take(seen: Browser, address: str, scene: Scene, *, change: str = "") -> bytes:
    """Open a scene's page and return its picture, a PNG. change: a script that runs before."""
    seen.size(*scene.size)
    features = {
        "prefers-color-scheme": "dark" if scene.is_dark else "light",
        "prefers-reduced-motion": "reduce",
    }
    seen.all_media(features)
    seen.open("about:blank")
    seen.open(address + scene.path)
    seen.wait_for_update()
    assert seen.run(CALM, list(FONTS)), "the pictures need DejaVu's fonts: fonts-dejavu-core"
    if change:
        seen.run(change)
    seen.run("return new Promise((done) => requestAnimationFrame(() => setTimeout(done, 250)))")
    return base64.b64decode(seen.driver.get_screenshot_as_base64())


def compare(seen: Browser, first: bytes, second: bytes) -> Difference:
    """Return how two pictures differ; the browser leaves its page, whose policy forbids it."""
    seen.open("about:blank")
    texts = [base64.b64encode(data).decode() for data in (first, second)]
    found: dict[str, Any] = seen.run(COMPARE, *texts, LEVEL, BLOCK)
    if "size" in found:
        return Difference(size=tuple(found["size"]))
    return Difference(
        count=found["count"], share=found["share"], block=found["worst"], at=tuple(found["at"])
    )


# --- smaller files ----------------------------------------------------------------------------


def compress(seen: Browser, png: bytes) -> bytes:
    """Return the picture as a smaller PNG: with a palette, from which no pixel differs visibly."""
    seen.open("about:blank")
    width, height, data = seen.run(PIXELS, base64.b64encode(png).decode())
    pixels = np.frombuffer(base64.b64decode(data), np.uint8).reshape(-1, 3)
    colours, places, counts = np.unique(pixels, axis=0, return_inverse=True, return_counts=True)
    palette, chosen = _choose_palette(colours.astype(np.int16), counts)
    rows = chosen[places].astype(np.uint8).reshape(height, width)
    packed = [b"\0" + row.tobytes() for row in rows]
    return _encode(width, height, 3, palette.astype(np.uint8).tobytes(), packed)


def _choose_palette(
    colours: npt.NDArray[np.int16], counts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int64]]:
    """Return at most 256 of the colours, and the number of the nearest one for each colour.

    The most frequent ones are kept; another one is left out if one that is kept is near.
    """
    for distance in range(1, PALETTE_DISTANCE_MAX + 1):
        kept: list[int] = []
        for number in np.argsort(-counts, kind="stable"):
            near = np.abs(colours[kept] - colours[number]).max(axis=1, initial=0)
            if not kept or near.min() >= distance:
                kept.append(int(number))
            if len(kept) > 256:
                break
        if len(kept) <= 256:
            palette = colours[kept]
            far = np.abs(colours[:, None, :] - palette[None, :, :]).max(axis=2)
            return palette, far.argmin(axis=1)
    raise AssertionError("the picture has too many colours for a palette")


def _encode(width: int, height: int, colour: int, palette: bytes, rows: list[bytes]) -> bytes:
    """Return a PNG. colour: 3 for a palette. rows: each with its filter's number before it."""
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    packer = zlib.compressobj(9, zlib.DEFLATED, 15, 9)
    data = packer.compress(b"".join(rows)) + packer.flush()
    chunks = [(b"IHDR", header), *([(b"PLTE", palette)] if palette else []), (b"IDAT", data)]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in [*chunks, (b"IEND", b"")]
    )
