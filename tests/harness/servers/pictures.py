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

from harness.servers.web import Browser
from harness.servers.web_scenes import Scene

ROOT = Path(__file__).resolve().parents[3]
SHOWN = ROOT / "docs" / "images"
STORED = ROOT / "tests" / "data" / "pictures"
FONTS = ("DejaVu Sans", "DejaVu Sans Mono")
PICTURE_BYTES_MAX = 120_000

# A difference of colour that counts, of 255: pale backgrounds of two states differ by 30.
LEVEL = 14
BLOCK = 16
# Pixels that may differ in the whole picture and in one block of 256: an edge of a glyph that
# another build of the font library places otherwise, and no more.
SHARE_MAX = 0.0005
BLOCK_PIXELS_MAX = 24

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
        """True if both pictures show the same."""
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
    """Return the same picture as a smaller PNG: with a palette if it has few colours, no alpha."""
    seen.open("about:blank")
    width, height, data = seen.run(PIXELS, base64.b64encode(png).decode())
    pixels = base64.b64decode(data)
    flat = [pixels[i : i + 3] for i in range(0, len(pixels), 3)]
    colours = sorted(set(flat))
    if len(colours) > 256:
        rows = [pixels[y * width * 3 : (y + 1) * width * 3] for y in range(height)]
        return _encode(width, height, 2, b"", _filter_up(rows))
    index = {colour: number for number, colour in enumerate(colours)}
    numbers = bytes(index[colour] for colour in flat)
    rows = [b"\0" + numbers[y * width : (y + 1) * width] for y in range(height)]
    return _encode(width, height, 3, b"".join(colours), rows)


def _filter_up(rows: list[bytes]) -> list[bytes]:
    """Return the rows, each as the difference to the one above: equal rows become zeros."""
    filtered, above = [], bytes(len(rows[0]))
    for row in rows:
        difference = bytes((a - b) & 255 for a, b in zip(row, above, strict=True))
        filtered.append(b"\2" + difference)
        above = row
    return filtered


def _encode(width: int, height: int, colour: int, palette: bytes, rows: list[bytes]) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    packer = zlib.compressobj(9, zlib.DEFLATED, 15, 9)
    data = packer.compress(b"".join(rows)) + packer.flush()
    chunks = [(b"IHDR", header), *([(b"PLTE", palette)] if palette else []), (b"IDAT", data)]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in [*chunks, (b"IEND", b"")]
    )
