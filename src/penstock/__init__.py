"""penstock: change data capture for people who live in Python and Spark."""

__version__ = "0.1.0"
