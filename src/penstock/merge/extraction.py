"""Part `extraction` of a merge: its engine over the logs of its pipelines, and its links there.

Nothing is ever sent back to a server: only the inputs' links are acknowledged.

If the merged log has a base, its first transaction has the rows of a state of each log's base, and
each log is read from the end of its state. A crash before that transaction is durable takes new
states. The states are of different moments, and a transaction over several logs may be in one state
and not yet in another. Once the merge is past the latest state by the time that parts may be apart,
all is of one moment. From there on the merged log is the only source of its own base. Not here:
reading the logs (`stream.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog

from penstock.base.held import BaseNotReady, HeldState, Holder
from penstock.base.manifest import NAME as BASE
from penstock.host.files import REAL_FILES, DirectoryLocked, FileMissing, remove_tree
from penstock.log import links
from penstock.log.layout import SegmentMissing
from penstock.log.links import CONSUMER_FILE
from penstock.merge.inputs import InputPlace, InputReplaced, MergeInput
from penstock.merge.order import Reached
from penstock.merge.state import BaseLacking, InputState, MergeState, MergeStateLost, MergeStates
from penstock.merge.stream import Member, MergeStream
from penstock.model import FlushPoint, PenstockError, Run, TableDefinition, TableName
from penstock.model.removal import Removal
from penstock.model.sections import MERGED, MergeSection
from penstock.ports.config import Config, Pipeline
from penstock.ports.handover import Handover
from penstock.ports.identity import SourceIdentity
from penstock.ports.registry import types_at
from penstock.ports.source import (
    EnginePlace,
    ExtractOptions,
    LogAccess,
    Origin,
    Ranges,
    ServerEnd,
    SourceEngine,
)
from penstock.ports.tables import tables_at


def identity(config: Config) -> SourceIdentity:
    """Return the merge's identity. The logs may change; the name stays."""
    return SourceIdentity(
        pipeline=config.pipeline.name,
        engine=MERGED,
        system_id="merge",
        timeline=0,
        database=config.pipeline.name,
        database_id=0,
        slot="",
        publication="",
    )


def has_begun(pipeline: Pipeline) -> bool:
    """Return whether the log has a position, from which it continues in any case."""
    return bool(pipeline.log_position())


def place_of(config: Config, one: Config) -> InputPlace:
    """Return the place of a log, and of our links to its segments.

    Args:
        config: of the merge.
        one: of the log's own pipeline.
    """
    links = one.layout.consumers / consumer_name(config)
    extension = one.change_loader.change_file_extension
    holder = Holder(
        one.layout.base,
        owner=consumer_name(config),
        log=one.layout.log,
        links=(one.layout.consumers / BASE, links),
        extension=extension,
    )
    return InputPlace(
        name=one.pipeline.name,
        log=one.layout.log,
        links=links,
        extension=extension,
        holder=holder if config.has_base else None,
        followed=partial(_list_followed, one),
    )


def _list_followed(one: Config) -> frozenset[TableName]:
    """Return the existing tables that a log follows."""
    known = tables_at(one.source.url).read_followed(one, added=())
    return known.names - known.missing if known is not None else frozenset()


def consumer_name(config: Config) -> str:
    """Return the consumer name under which a merge reads its logs."""
    return f"merge-{config.pipeline.name}"


@contextmanager
def open_engine(
    pipeline: Pipeline,
    options: ExtractOptions,
    *,
    tables: Callable[[], list[TableDefinition]],
    stop: Callable[[], bool],
) -> Iterator[MergeEngine]:
    """Return the engine. Each log's own pipeline captures its tables."""
    del options, tables, stop
    config = pipeline.config
    assert config.merge is not None, "a file with [merge]"
    if config.has_base:
        links.enable(config.layout.consumers / BASE)  # before the first segment
    yield MergeEngine(
        name=config.pipeline.name,
        scheme=config.source.url.partition("://")[0],
        types=types_at(config.source.url),
        places=[place_of(config, one) for one in config.inputs],
        section=config.merge,
        has_base=config.has_base,
    )


def _places(config: Config) -> Iterator[Path]:
    """Yield the directory of links that each log keeps for this merge."""
    for one in config.inputs:
        place = one.layout.consumers / consumer_name(config)
        if place.exists():
            yield place


def _removal(place: Path) -> Removal:
    return Removal(what=f"links of this merge in {place}", statements=())


def find_removals(config: Config, handover: Handover | None) -> Iterator[Removal]:
    """Yield the removals."""
    del handover
    yield from map(_removal, _places(config))


def owner(config: Config, *, log_id: str) -> str:
    """Return an empty text: links have the merge's name."""
    del config, log_id
    return ""


def remove(config: Config, handover: Handover | None, removal: Removal) -> None:
    """Remove the settings first, so that the log makes no further links."""
    del handover
    for place in _places(config):
        if _removal(place) == removal:
            with suppress(FileMissing):
                REAL_FILES.unlink(place / CONSUMER_FILE)
            remove_tree(place)


def begin_merge(
    places: Sequence[InputPlace], *, join_us: int
) -> tuple[MergeState, list[tuple[str, HeldState]]]:
    """Hold the present state of each log; return the merge's state after them, and the held
    states.

    Raises BaseNotReady, FileFailed.
    """
    held: list[tuple[str, HeldState]] = []
    inputs: list[InputState] = []
    try:
        for number, place in enumerate(places, 1):
            state, segment = _hold(place)
            held.append((place.name, state))
            reached = Reached(trx=state.end.trx, seen_us=state.end.commit_time_us)
            inputs.append(
                InputState(
                    name=place.name,
                    number=number,
                    log_id=state.manifest.log_id,
                    segment=segment,
                    reached=reached,
                )
            )
    except BaseException:
        for _, state in held:
            state.release()
        raise
    times = [state.end.commit_time_us for _, state in held]
    made = MergeState(
        watermark_us=min(times),
        has_base=True,
        settles_us=max(times) + join_us,
        inputs=tuple(inputs),
    )
    return made, held


def _hold(place: InputPlace) -> tuple[HeldState, int]:
    assert place.holder is not None, "a merge with a base has logs with bases"
    place.holder.clear()
    try:
        state, segment = place.holder.hold_now()
    except BaseNotReady as error:
        raise BaseNotReady(f"{place.name}: {error.message}", hint=error.hint) from error
    lacking = [name for name in place.followed() if state.manifest.of(name) is None]
    if lacking:
        state.release()
        raise BaseNotReady(
            f"{place.name}: table {min(lacking)} is not in the base yet",
            hint="Nothing to do: its load process reads tables that are new within seconds.",
        )
    return state, segment


def lacking(name: str) -> BaseLacking:
    """Return the error for a merged log that has begun in another mode."""
    return BaseLacking(
        f"the merged log of {name} has begun without the rows that its logs had before",
        hint='Remove mode = "data+change". Or begin again with it: with another name in '
        "[pipeline], in a directory of its own, into tables that are empty.",
    )


logger = structlog.get_logger(__name__)


class InputLeft(PenstockError):
    """A log is no longer in [merge], and not all of it is merged. Fields: input."""

    code = "MG06"
    retry = "operator"


@dataclass(slots=True)
class MergeEngine(SourceEngine):
    """SourceEngine over several logs.

    Attributes:
        places: of the logs.
        scheme: of the merged log's source.
        types: engine of the merged log's types.
        has_base: the merged log begins with the rows of the logs' bases.
    """

    name: str = field()
    scheme: str
    types: str
    places: Sequence[InputPlace]
    section: MergeSection
    has_base: bool = False
    _states: MergeStates | None = None
    _place: EnginePlace | None = None
    _stream: MergeStream | None = None
    _released: dict[str, int] = field(default_factory=dict)

    def begin(self, place: EnginePlace) -> Origin:
        """Return the merge's identity. What is not durably merged is still in the inputs."""
        self._place = place
        self._states = MergeStates(place.state)
        entries = self._states.entries
        return Origin(
            identity={"engine": self.scheme, "flavour": self.types, "merge": self.name},
            resend_from=entries[0].trx if entries else 0,
        )

    def server_end(self) -> ServerEnd:
        """Return the time alone: the inputs are watched all the time."""
        assert self._place is not None, "begin() comes first"
        return ServerEnd(now_us=self._place.clock.now_us())

    def heartbeats(self) -> AbstractContextManager[Callable[[int], None]]:
        """Return a sender that does nothing: the inputs have their own."""
        return nullcontext(lambda _: None)

    def text(self, position: int) -> str:
        return str(position)

    def bytes_between(self, _first: int, _last: int) -> int:
        """Return 0: the size is unknown."""
        return 0

    def attempt(self) -> AbstractContextManager[None]:
        return nullcontext()

    def ranges(self, _durable: FlushPoint) -> AbstractContextManager[Ranges] | None:
        return None

    @contextmanager
    def stream(self, durable: FlushPoint) -> Iterator[MergeStream]:
        """Return a stream over the inputs.

        Raises MergeStateLost, InputLeft, BaseLacking, BaseNotReady.
        """
        assert self._states is not None, "begin() comes first"
        assert self._place is not None
        state, shapes = self._states.at(durable.trx)
        self._check_left(state)
        held: list[tuple[str, HeldState]] = []
        if self.has_base and not durable.trx:
            self._states.forget()  # a crash left entries for other states of the bases
            state, held = begin_merge(self.places, join_us=round(self.section.join_seconds * 1e6))
        elif self.has_base and not state.has_base:
            raise lacking(self.name)
        members = [
            Member(
                state=one,
                source=MergeInput(
                    self._place_of(one.name),
                    trx=one.reached.trx,
                    number=one.segment,
                    log_id=one.log_id,
                ),
                goes_behind=self._parents_of(one.name, state),
                ends=one.name in self.section.split,
            )
            for one in self._inputs(state)
            if not one.is_over
        ]
        over = tuple(one for one in state.inputs if one.is_over)
        self._stream = MergeStream(
            members,
            start=durable,
            state=state,
            over=over,
            shapes=shapes,
            section=self.section,
            run_directory=self._place.run,
            clock=self._place.clock,
            has_writer=self._has_writer,
            on_acknowledge=self._release,
            begins_with=held,
        )
        try:
            yield self._stream
        finally:
            self._stream.close()
            self._stream = None

    def _inputs(self, state: MergeState) -> list[InputState]:
        """Return the known inputs, followed by joining ones, which begin with changes after the
        watermark.

        An input that replaces another begins without such a limit, whatever its clock says.
        """
        follows = {child for children in self.section.split.values() for child in children}
        known = {one.name: one for one in state.inputs}
        found = list(state.inputs)
        for place in self.places:
            if place.name not in known:
                at_us = state.watermark_us
                is_child = place.name in follows
                reached = Reached(floor_us=at_us) if is_child else Reached(skips_us=at_us)
                found.append(InputState(name=place.name, number=len(found) + 1, reached=reached))
                logger.info("log joins", input=place.name, behind_us=state.watermark_us)
        return found

    def _check_left(self, state: MergeState) -> None:
        named = {place.name for place in self.places}
        for one in state.inputs:
            if one.name not in named and not one.is_over:
                raise InputLeft(
                    f"{one.name} is not among logs in [merge], and is not merged to its end",
                    hint="Put it back, stop its extraction, and name it in [merge.split] with the "
                    "logs that replace it, or none: status says when all of it is merged.",
                    input=one.name,
                )

    def _parents_of(self, name: str, state: MergeState) -> frozenset[str]:
        """Return the logs that have to be merged to their end before this one."""
        over = {one.name for one in state.inputs if one.is_over}
        return (
            frozenset(parent for parent, others in self.section.split.items() if name in others)
            - over
        )

    def _place_of(self, name: str) -> InputPlace:
        return next(place for place in self.places if place.name == name)

    def _has_writer(self, place: InputPlace) -> bool:
        """Return whether an extractor writes a log now."""
        try:
            place.files.lock(place.log).release()
        except DirectoryLocked:
            return True
        return False

    def _release(self, trx: int) -> None:
        """Release the inputs' segments up to a durable transaction of the merged log."""
        assert self._states is not None
        state = next((one for one in self._states.entries if one.trx == trx), None)
        if state is None or self._stream is None:
            return
        sources = {member.source.name: member.source for member in self._stream.members}
        for one in state.inputs:
            source = sources.get(one.name)
            if source is not None and one.segment > self._released.get(one.name, -1):
                source.release(one.segment)
                self._released[one.name] = one.segment

    def saw(self, run: Run) -> None:
        """Do nothing."""

    def before_flush(self, end: FlushPoint) -> None:
        """Store the positions in the inputs: they are on the disk before the log is."""
        assert self._states is not None
        if self._stream is None or any(one.trx == end.trx for one in self._states.entries[-1:]):
            return
        found = self._stream.state_at(end.trx)
        if found is not None:
            self._states.save(*found)

    def has_outstanding(self) -> bool:
        return False

    def tend(self, log_access: LogAccess) -> None:
        """Report inputs that hold the merge back."""
        del log_access
        if self._stream is not None:
            self._stream.report()

    def is_loss(self, error: PenstockError) -> bool:
        return isinstance(error, InputReplaced | MergeStateLost | SegmentMissing)
