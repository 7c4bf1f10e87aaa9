"""Loading through Spark: the only room that imports pyspark."""

LOAD_AFRESH = (
    "To load everything afresh: stop the pipeline, drop its target tables and schema wirekite, "
    "drop its slot with `select pg_drop_replication_slot(...)`, empty its directory, then "
    "`penstock run`."
)
"""What to do when a target can not be brought on from where it is."""
