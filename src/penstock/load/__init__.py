"""Loading through Spark: the only package, beside the lake engines, that imports pyspark."""
