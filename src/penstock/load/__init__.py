"""Loading through Spark: the only room, beside the lake engines, that imports pyspark."""
