"""Shared code of the engines that are SQL databases: schema translation, shape changes, read
plans.
"""
