"""MySQL and MariaDB as a target; `target_engine.py` is the port, the rest is behind it."""
