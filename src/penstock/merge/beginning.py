"""Beginning of a merged log with a base: it starts with a state of each log's base.

The first merged transaction has the rows of all these states, and each log is read from the end of
its state. A crash before that transaction is durable takes new states. The states are of different
moments, and a transaction over several logs may be in one state and not yet in another. Once the
merge is past the latest state by the time that parts may be apart, all is of one moment. From
there on the merged log is the only source of its own base.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.base.held import BaseNotReady, HeldState
from penstock.merge.inputs import InputPlace
from penstock.merge.order import Reached
from penstock.merge.state import BaseLacking, InputState, MergeState


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
