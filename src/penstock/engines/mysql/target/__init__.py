"""MySQL and MariaDB as a target; `engine.py` is the port, the rest is behind it."""
