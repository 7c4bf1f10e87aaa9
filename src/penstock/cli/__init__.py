"""The command line: arguments in, exit codes out. The one package that prints.

What the commands do is in `penstock.control`, imported when a command needs it, so that `--help`
answers at once.
"""

from penstock.cli.entry import cli, guarded, main

__all__ = ["cli", "guarded", "main"]
