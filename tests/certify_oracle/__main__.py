"""`make certify-oracle DSN=oracle://...`: the command line and the order of the steps.

Exit codes: 0 nothing failed, 1 an assumption, a test or the soak failed, 2 the database cannot be
examined, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from certify.records import write_records
from certify.report import SEND, Report
from certify_oracle.case import CASES, run_case
from certify_oracle.grants import examine_rights
from certify_oracle.server import SCHEMA, TARGET, Facts, Server
from certify_oracle.soak import run_soak
from certify_oracle.suites import CHOSEN, run_suites
from penstock.model import PenstockError

BUILD = Path(__file__).parents[2] / "build"
SOAK_S = 300.0
CASE_MODULES = ("row_cases", "value_cases", "schema_cases", "position_cases")
GOOD, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="certify_oracle", description=__doc__)
    parser.add_argument("url", help="oracle://user:password@host:1521/service?pdb=NAME")
    parser.add_argument("--build", type=Path, default=BUILD, help="folder of the report")
    parser.add_argument("--case", action="append", default=[], help="run only these cases")
    parser.add_argument(
        "--leave-out", action="append", default=[], metavar="CASE=REASON", help="a case not to run"
    )
    parser.add_argument("--soak-seconds", type=float, default=SOAK_S, help="0: no soak")
    parser.add_argument("--tests", default=CHOSEN, help="tests to run, as pytest -k; empty: none")
    return parser.parse_args(arguments)


def say(text: str) -> None:
    """Print a line of progress."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Run the certification; return the exit code."""
    for name in CASE_MODULES:
        import_module(f"certify_oracle.{name}")
    options = parse_arguments(arguments)
    try:
        server = Server(options.url)
        facts = server.facts()
    except PenstockError as error:
        say(f"{error.code}: {error.message}\n{error.hint}")
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    report = make_report(facts)
    report.is_whole = bool(options.tests and options.soak_seconds and not options.case)
    report.left_out = dict(one.partition("=")[::2] for one in options.leave_out)
    refused: PenstockError | None = None
    try:
        certify(server, facts, report, options)
    except KeyboardInterrupt:
        say("interrupted: dropping what was created")
        report.is_interrupted = True
    except PenstockError as error:
        refused = error
    finally:
        report.left = server.drop_all(say)
    if refused is not None:
        say(f"{refused.code}: {refused.message}\n{refused.hint}")
        return REFUSED
    written = report.write(options.build)
    records = options.build / "certify-oracle.jsonl"
    write_records(records, [one for outcome in report.outcomes for one in outcome.records])
    say("\n".join(["", *report.lines(), "", f"report: {written[1]}", f"records: {records}", SEND]))
    if report.is_interrupted:
        return INTERRUPTED
    return GOOD if report.is_good else FAILED


def make_report(facts: Facts) -> Report:
    """Return an empty report."""
    return Report(
        engine="oracle",
        shown=(
            f"Oracle {facts.version} {facts.edition}",
            f"{facts.character_set}, {facts.log_mode}, force logging {facts.force_logging}, "
            f"{facts.threads} redo threads, {facts.role}",
        ),
        server=asdict(facts),
        lacks_of="redo cannot be mined",
    )


def certify(server: Server, facts: Facts, report: Report, options: argparse.Namespace) -> None:
    """Do the steps, and note their results. Raises SchemaTaken, PrivilegeMissing."""
    say(f"Oracle {facts.version} {facts.edition}")
    server.create(SCHEMA)
    report.lacks = facts.lacks
    report.rights = examine_rights(server)
    for one in CASES.choose(options.case, report.left_out):
        outcome = run_case(one, server, facts, lacks=report.lacks)
        report.outcomes.append(outcome)
        say(f"{outcome.state:8}{one.name}  {outcome.reason}".rstrip())
    if options.tests and not report.lacks:
        say("suites of sources and targets: several minutes without a line")
        report.suites = run_suites(server, options.build, chosen=options.tests, say=say)
    if options.soak_seconds and not report.lacks:
        say(f"soak of {options.soak_seconds:.0f} seconds")
        server.create(TARGET)
        with tempfile.TemporaryDirectory() as folder:
            report.soak = run_soak(server, Path(folder), seconds=options.soak_seconds, say=say)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
