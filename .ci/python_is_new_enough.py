"""Stop with one clear sentence when the interpreter is too old or cannot make environments."""

import importlib.util
import sys

if sys.version_info < (3, 11):
    sys.exit(
        "penstock needs Python 3.11 or newer, this is %d.%d; name another one with "
        "`make PYTHON=python3.12 ...`" % sys.version_info[:2]
    )
if importlib.util.find_spec("ensurepip") is None:
    sys.exit("this Python has no venv; on Debian and Ubuntu: apt-get install python3-venv")
