"""The fake under the driver's name, for processes whose PYTHONPATH begins with this folder.

SPILL_BYTES_VARIABLE: how many bytes of rows these processes keep in memory, so that tests need no
large transactions.
"""

import os

from penstock.engines.oracle.source import assembly
from sim_oracle.oracledb import *  # noqa: F403
from sim_oracle.oracledb import __version__, defaults  # noqa: F401 - not in __all__

SPILL_BYTES_VARIABLE = "PENSTOCK_TEST_ORACLE_SPILL_BYTES"
if SPILL_BYTES_VARIABLE in os.environ:
    assembly.SPILL_BYTES = int(os.environ[SPILL_BYTES_VARIABLE])
