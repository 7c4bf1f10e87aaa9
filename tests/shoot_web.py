"""Take the pictures of the web interface and of the terminal: `make screenshots`.

Pages and view show recorded states, so that a picture changes only if what it shows does. Only
pictures that differ from the stored ones are written; their names are printed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from harness.pipelines.run_picture import TERMINAL, draw_terminal
from harness.servers.pictures import PICTURE_BYTES_MAX, compare, compress, path_of, take
from harness.servers.web import browser
from harness.servers.web_scenes import SCENES, serve_readings


def main(names: list[str]) -> int:
    """Take the pictures of these scenes; of all without names."""
    too_large = []
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder) / "browser") as seen:
        for name in names or SCENES:
            scene, path = SCENES[name], path_of(name, SCENES[name])
            path.parent.mkdir(parents=True, exist_ok=True)
            with serve_readings(Path(folder) / name, scene.readings()) as (address, _):
                picture = take(seen, address, scene)
                seen.open("about:blank")  # its stream of events must end before the server
            if path.exists() and compare(seen, path.read_bytes(), picture).is_small:
                continue
            path.write_bytes(compress(seen, picture))
            sys.stdout.write(f"{path} {path.stat().st_size}\n")
            too_large += [path] if path.stat().st_size > PICTURE_BYTES_MAX else []
    if not names:
        TERMINAL.write_text(draw_terminal(), encoding="utf-8")
    return 1 if too_large else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
