"""Remote procedure calls (MS-TDS 2.2.6.6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim_sqlserver import encode, metadata, procedures, replies
from sim_sqlserver.decode import Cursor, Value, read_type
from sim_sqlserver.errors import SqlError
from sim_sqlserver.sqltypes import SqlType
from sim_sqlserver.variables import PARAMETERS_MAX, Variable, parse_declarations

if TYPE_CHECKING:
    from sim_sqlserver.reply import Reply
    from sim_sqlserver.session import Session

_NUMBERS = {
    1: "sp_cursor", 2: "sp_cursoropen", 3: "sp_cursorprepare", 4: "sp_cursorexecute",
    5: "sp_cursorprepexec", 6: "sp_cursorunprepare", 7: "sp_cursorfetch", 8: "sp_cursoroption",
    9: "sp_cursorclose", 10: "sp_executesql", 11: "sp_prepare", 12: "sp_execute",
    13: "sp_prepexec", 14: "sp_prepexecrpc", 15: "sp_unprepare",
}  # fmt: skip
_BY_REFERENCE, _DEFAULT = 1, 2


@dataclass(slots=True)
class Parameter:
    """A parameter of a call."""

    name: str
    is_output: bool
    type: SqlType
    value: Value


def _read(cursor: Cursor) -> tuple[str, list[Parameter]]:
    length = cursor.short()
    name = _NUMBERS.get(cursor.short(), "?") if length == 0xFFFF else cursor.text(length)
    cursor.short()
    parameters = []
    while not cursor.is_done:
        if cursor.data[cursor.at] in (0x80, 0xFF, 0xFE):
            raise SqlError(8009, "The simulator does not know batches of calls.")
        given = cursor.text(cursor.byte())
        status = cursor.byte()
        sql_type, read = read_type(cursor)
        parameters.append(Parameter(given, bool(status & _BY_REFERENCE), sql_type, read(cursor)))
    return name.rpartition(".")[2].strip("[]").lower(), parameters


def run(session: Session, cursor: Cursor, reply: Reply) -> None:
    """Run a call."""
    name, parameters = _read(cursor)
    session.return_status = 0
    session.outputs = []
    if name == "sp_executesql":
        _run_text(session, parameters[0], parameters[1:2], parameters[2:], reply)
    elif name in ("sp_prepexec", "sp_prepare"):
        handle = session.prepare(_text(parameters[2]), _text(parameters[1]))
        session.outputs.append((0, parameters[0].name, SqlType("int"), handle))
        if name == "sp_prepexec":
            _run_text(session, parameters[2], parameters[1:2], parameters[3:], reply)
    elif name == "sp_execute":
        text, declared = session.find_prepared(parameters[0].value)
        _run_prepared(session, text, declared, parameters[1:], reply)
    elif name == "sp_unprepare":
        session.unprepare(parameters[0].value)
    else:
        _run_procedure(session, name, parameters, reply)


def _text(parameter: Parameter) -> str:
    return "" if parameter.value is None else str(parameter.value)


def _run_text(
    session: Session,
    text: Parameter,
    declared: list[Parameter],
    given: list[Parameter],
    reply: Reply,
) -> None:
    _run_prepared(session, _text(text), _text(declared[0]) if declared else "", given, reply)


def _run_prepared(
    session: Session, text: str, declared: str, given: list[Parameter], reply: Reply
) -> None:
    session.server.check_text(session, text)
    if len(given) > PARAMETERS_MAX:
        said = (
            "The incoming request has too many parameters. The server supports a maximum of 2100 "
        )
        raise SqlError(8003, said + "parameters. Reduce the number of parameters and resend.")
    names = parse_declarations(declared)
    session.variables = {name: Variable(sql_type) for name, sql_type, _ in names}
    order = [name for name, _, _ in names]
    for place, parameter in enumerate(given):
        name = parameter.name.lstrip("@").lower() or (order[place] if place < len(order) else "")
        if name not in session.variables:
            raise SqlError(8144, "Procedure or function has too many arguments specified.")
        session.variables[name].value = parameter.value
        session.variables[name].is_output = parameter.is_output
    session.run_batch(text, reply)
    for place, (name, variable) in enumerate(session.variables.items()):
        if variable.is_output:
            session.outputs.append((place, f"@{name}", variable.type, variable.value))


def _run_procedure(session: Session, name: str, parameters: list[Parameter], reply: Reply) -> None:
    session.server.check_text(session, f"EXEC {name}")
    arguments = procedures.Arguments()
    session.variables = {}
    for parameter in parameters:
        key = parameter.name.lstrip("@").lower()
        if key:
            arguments.named[key] = parameter.value
        else:
            arguments.listed.append(parameter.value)
    session.run_call(name, arguments, reply)


def outputs(session: Session) -> bytes:
    """Return the RETURNVALUE tokens of the last call."""
    parts = []
    for ordinal, name, sql_type, value in session.outputs:
        parts.append(
            replies.return_value(
                ordinal, name, metadata.type_info(sql_type), encode.python_value(sql_type, value)
            )
        )
    session.outputs = []
    return b"".join(parts)
