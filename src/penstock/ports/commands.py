"""Commands of one engine: `penstock ENGINE COMMAND FILE`.

An engine that has some gives them as its part `commands`: a module with COMMANDS. It is imported
only when a command is shown or run, so the module itself imports little. Not here: their
conversion to click's commands (`cli/engine_commands.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.model import PenstockError
from penstock.ports.config import Config
from penstock.ports.registry import PartName


class UsageWrong(PenstockError):
    """An engine's command was called in a wrong way."""

    code = "PS22"
    retry = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Option of a command. name: as it is typed; metavar: of its value."""

    name: str
    metavar: str
    help: str
    is_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Result of a command. message: a line; fields: the same for programs."""

    message: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Command of an engine.

    Attributes:
        help: Its description, for its help.
        example: An example of its arguments.
        exit_codes: Their meanings.
        run: Gets the pipeline file's configuration, the values of the options by name and the
            arguments after `--`.
        options: Its options.
        question: To be answered before anything is changed, unless --yes is given; may be empty.
        more: The arguments that may follow `--`, in words; empty if there are none.
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
    """Part `commands` of an engine. COMMANDS: in the order in which they are shown."""

    COMMANDS: Sequence[Command]


COMMANDS_PART: PartName[EngineCommands] = PartName("commands")
