"""The named points at which the halves of a pipeline are killed, one after another.

Not here: the tests, and points of a single engine, which only its tests know.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness.faults.kills import BankPipeline, Half
from penstock.log import links

# `name:nth`, each after the previous one: some need files that an earlier death left.
EXTRACT_CHAIN = (
    "extract.relations.before:1",
    "log.create.before:1",
    "log.create.after:1",
    "log.recovery.discard.before:1",  # of the empty segment that the previous one left
    "log.write.before:1",
    "log.write.after:1",
    "log.fdatasync.before:2",
    "log.fdatasync.after:1",
    "log.recovery.truncate.before:1",  # the writes of the previous one are complete
    "log.recovery.truncate.after:1",
    "log.flush.before:3",
    "log.flush.after:2",
    "log.recovery.before:1",
    "log.recovery.after:1",
    "log.footer.before:1",
    "log.state.before:1",
    "log.rename.before:1",
    "log.rename.after:2",
    "log.link.before:1",
    "log.link.after:2",
    "extract.write.after:5",
    "extract.flush.before:2",
    "extract.flush.after:3",
    "extract.acknowledge.after:2",
    "extract.rotate.before:1",
    "extract.rotate.after:2",
    "extract.record.before:1",
    "extract.record.after:2",
    "stream.start.before:1",
    "stream.acknowledge.before:2",
    "stream.acknowledge.after:1",
    "spill.append.before:2",
    "spill.append.after:3",
    "spill.remove.before:1",
    "files.create:1",
    "files.write:3",
    "files.fdatasync:2",
    "files.rename:1",
    "files.replace:3",
)
_OF_POSTGRES = ("extract.relations.", "stream.", "spill.", "slot.")
ENGINE_FREE = tuple(point for point in EXTRACT_CHAIN if not point.startswith(_OF_POSTGRES))
LOAD_CHAIN = (
    "load.prepare.before:1",
    "load.job.before:1",
    "load.ahead.before:1",
    "load.ahead.after:2",
    "load.copy.before:1",
    "load.copy.after:1",
    "load.apply.before:2",
    "load.apply.after:1",
    "load.progress.before:1",
    "load.commit.before:2",
    "load.commit.after:1",
)
PARTS_CHAIN = (
    "load.part.before:2",
    "load.part.after:1",
    "load.part.after:2",
    "load.parts.joined:1",
    "load.apply.after:2",
    "load.commit.before:2",
    "load.commit.after:2",
    "load.copy.after:1",
)
PREPARED_CHAIN = ("load.part.committed:1", "load.part.committed:2")
# Three batches of two: while the first is applied, another can be staged ahead.
AHEAD_SEGMENT_COUNT = 6
# Short enough for every run of the tests: each start of a loader is a start of Spark.
SHORT = (
    (
        "extract.relations.before:1",
        "log.create.after:1",
        "log.recovery.discard.before:1",
        "log.write.after:1",
        "log.fdatasync.after:1",
        "log.recovery.truncate.before:1",
        "log.flush.after:2",
        "log.state.before:1",
        "log.rename.after:2",
        "extract.acknowledge.after:2",
        "extract.rotate.before:1",
        "stream.acknowledge.before:2",
        "spill.append.after:3",
    ),
    ("load.copy.after:1", "load.ahead.after:1", "load.apply.after:1", "load.commit.after:1"),
)


def kill_along(pipeline: BankPipeline, half: Half, chain: tuple[str, ...]) -> list[str]:
    """Kill a half at one point after another; return the points that were not reached."""
    missed = []
    for point in chain:
        if half.running:
            half.kill()
        if point.startswith("load.ahead."):
            pipeline.segments_come(AHEAD_SEGMENT_COUNT)
        if not pipeline.kill_at(half, point):
            missed.append(point)
        pipeline.transactions_go_on()
    if not half.running:
        half.start()
    return missed


def kill_both_along(
    folder: Path,
    source: str,
    target: str,
    chains: tuple[tuple[str, ...], tuple[str, ...]],
    *,
    first: str = "",
    **servers: Any,
) -> None:
    """Kill extractor and loader along their chains at the same time; the copy is equal at the end,
    and a consumer's folder has a link to each segment.

    chains: of the extractor, and of the loader. first: a point that the extractor reaches once in
    the life of a pipeline, at its first change. servers: further options of BankPipeline.
    """
    small = {"changeLoader": {"maxFilesPerBatch": 2}}
    with BankPipeline(
        folder, 1, source=source, target=target, sections=small, **servers
    ) as pipeline:
        consumer = pipeline.directory / "cdc" / "lake"
        links.enable(consumer)
        if first:
            assert pipeline.kill_at(pipeline.extract, first)
        pipeline.start()
        missed = {}
        with ThreadPoolExecutor(1) as beside:
            load = beside.submit(kill_along, pipeline, pipeline.load, chains[1])
            missed["extract"] = kill_along(pipeline, pipeline.extract, chains[0])
            missed["load"] = load.result()  # with the error that ended it, if one did
        pipeline.check_books()
        pipeline.configure(sections={"changeLoader": {"maxFilesPerBatch": 30}})
        pipeline.finish()
        assert missed == {"load": [], "extract": []}
        closed = {path.name for path in (pipeline.directory / "log").glob("*.ckt")}
        assert closed == {path.name for path in consumer.glob("*.ckt")}


def kill_at_the_beginning(
    folder: Path, source: str, target: str, story: tuple[str, str, str]
) -> None:
    """Kill the extractor in the handover, then the bulk load; the copy is equal at the end.

    story: the point of the handover; the victim: `both` halves, `load`, the `jvm` or a `worker`;
    the point in the bulk load.
    """
    point, victim, chunk = story
    with BankPipeline(folder, 1, source=source, target=target) as pipeline:
        extract, load = pipeline.extract, pipeline.load
        assert pipeline.kill_at(extract, f"{point}:1")
        pipeline.transactions_go_on()
        extract.start()
        load.start(f"{chunk}:1:{'kill' if victim == 'worker' else 'sleep'}")
        pipeline.until(lambda: load.has_reached, f"{chunk} in the bulk load")
        if victim == "both":
            extract.kill()
        if victim == "jvm":
            assert load.kill_descendant("java")
        elif victim != "worker":
            load.kill()
            pipeline.transactions_go_on()
            load.start()
        if victim == "both":
            extract.start()
        pipeline.until_read()
        pipeline.finish()
