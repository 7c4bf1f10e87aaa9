"""Loading through Spark: the only room that imports pyspark."""

from penstock.model import LOAD_AGAIN

LOAD_AFRESH = f"{LOAD_AGAIN[0].upper()}{LOAD_AGAIN[1:]}"
"""What to do when a target cannot be brought on from where it is."""
