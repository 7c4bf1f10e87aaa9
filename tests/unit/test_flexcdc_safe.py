"""`penstock flexcdc run --safe`: restarts after a failure, as consumer_safe.sh does them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from penstock.host.process import this_program

INI = """
[flexcdc]
error_log = why.err
failure_sleep_time = 0.2
failure_log_file = failures.log
failure_email_address = keeper@example.org
[source]
user = unused
host = 127.0.0.1
port = 1
[dest]
user = unused
host = 127.0.0.1
port = 1
"""
WITHIN_S = 60.0


def test_failures_are_noted_and_mailed_until_it_is_stopped(tmp_path: Path) -> None:
    """This tests failure_sleep_time, failure_log_file, failure_email_address, and error_log."""
    (tmp_path / "consumer.ini").write_text(INI)
    mailer = tmp_path / "bin" / "sendmail"
    mailer.parent.mkdir()
    mailer.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/mail\ncat >> {tmp_path}/mail\n')
    mailer.chmod(0o755)
    process = subprocess.Popen(
        [*this_program(), "flexcdc", "--ini", str(tmp_path / "consumer.ini"), "run", "--safe"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{mailer.parent}:{os.environ['PATH']}"},
        stderr=subprocess.PIPE,
        text=True,
    )
    log = tmp_path / "failures.log"
    deadline = time.monotonic() + WITHIN_S
    while not log.exists() or len(log.read_text().splitlines()) < 2:
        assert time.monotonic() < deadline, "it is not started again"
        assert process.poll() is None, "it ends only when it is stopped"
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0, said
    assert "penstock flexcdc run ended with exit code 1" in log.read_text()
    mail = (tmp_path / "mail").read_text()
    assert "-t\nTo: keeper@example.org\nSubject: FlexCDC failed\n" in mail
    assert "127.0.0.1" in (tmp_path / "why.err").read_text()
    assert said.count("error ") >= 2, "each one's error is shown"
