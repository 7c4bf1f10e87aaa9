"""The load process on Spark. Apart from the lake engines, only this package imports pyspark."""
