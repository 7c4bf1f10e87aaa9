"""The last report of a merging process: the position of each log, and the ones that hold it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.control.pipeline.display import human_count, human_seconds
from penstock.host.files import REAL_FILES, FileMissing
from penstock.merge.stream import STATUS_FILE
from penstock.model.words import count_words
from penstock.ports.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSeen:
    """Content of run/merge.json; empty before the first time. Times are microseconds since 1970."""

    facts: Mapping[str, Any]

    def lines(self, now_us: int) -> Iterator[tuple[str, bool]]:
        """Yield lines for people, each with whether it is trouble."""
        facts = self.facts
        if not facts:
            yield "merge: it has not run yet", False
            return
        held = facts["held_by"]
        for one in facts["inputs"]:
            if one.get("is_over"):
                yield f"log {one['name']}: ended, all of it is merged", False
                continue
            resolved = one["resolved_us"]
            upto = f"known up to {human_seconds((now_us - resolved) / 1e6)} ago" if resolved else ""
            behind = f"{count_words(one['behind'], 'transaction')} to be merged"
            text = f"log {one['name']}: merged up to transaction {one['trx']}, {behind}"
            yield ", ".join(filter(None, (text, upto))), False
        if facts["held_s"]:
            waits = human_seconds(facts["held_s"])
            yield (
                f"merge: waits for {', '.join(held)} for {waits}: nothing new comes from there; "
                "heartbeatSeconds in its pipeline file moves an idle log on",
                True,
            )
        joined, alone = facts["joined_count"], facts["unjoined_count"]
        if joined or alone:
            text = f"global transactions: {human_count(joined)} joined"
            yield f"{text}, {human_count(alone)} parts alone", bool(alone)
        if facts["left_out_count"]:
            yield f"left out: {human_count(facts['left_out_count'])} markers of one log", True
        if facts["clock_skew_us"] > facts["clock_skew_max_us"]:
            yield f"clocks differ by {human_seconds(facts['clock_skew_us'] / 1e6)}", True


def read_merge(config: Config) -> MergeSeen | None:
    """Return the last report of the merging process; None if nothing is merged."""
    if config.merge is None:
        return None
    try:
        data = REAL_FILES.read_whole(config.layout.run / STATUS_FILE)
    except FileMissing:
        return MergeSeen(facts={})
    return MergeSeen(facts=msgspec.json.decode(data))
