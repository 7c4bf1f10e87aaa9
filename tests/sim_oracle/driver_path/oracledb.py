"""The fake under the driver's name, for processes whose PYTHONPATH begins with this folder."""

from sim_oracle.oracledb import *  # noqa: F403
from sim_oracle.oracledb import __version__, defaults  # noqa: F401 - not in __all__
