"""Commands of one engine: `penstock ENGINE COMMAND FILE`.

An engine that has some gives them as its part `commands`: a module with COMMANDS. Nothing is
imported for them but when one is shown or run, so the module itself imports little. Not here: how
they become commands (`cli/engine_commands.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.model import PenstockError
from penstock.ports.config import Config


class UsageWrong(PenstockError):
    """An engine's command was called in a wrong way."""

    code = "PS22"
    retry = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of a command. name: as it is typed; metavar: of its value."""

    name: str
    metavar: str
    help: str
    is_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a command did. message: a line; fields: the same for programs."""

    message: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command. help: what it does; example, exit_codes: of its help.

    question: to be answered before anything is changed, or with --yes; empty: nothing is asked.
    more: what may follow behind `--`, in words; empty: nothing. run: takes the pipeline file's
    configuration, the values of the options by name and what follows.
    """

    name: str
    help: str
    example: str
    exit_codes: str
    run: Callable[[Config, Mapping[str, str | None], Sequence[str]], Iterator[Done]]
    options: tuple[Option, ...] = ()
    question: str = ""
    more: str = ""


class EngineCommands(Protocol):
    """An engine's part `commands`. COMMANDS: in the order in which they are shown."""

    COMMANDS: Sequence[Command]
