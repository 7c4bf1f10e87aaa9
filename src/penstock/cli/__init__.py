"""The command line: arguments in, exit codes out. This is the one package that prints.

The commands' work is in `penstock.control`, which is imported when a command needs it, so that
`--help` answers at once.
"""

from penstock.cli.entry import cli, main, run_guarded

__all__ = ["cli", "main", "run_guarded"]
