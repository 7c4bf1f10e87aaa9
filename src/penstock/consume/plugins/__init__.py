"""Plugins: user classes that get every transaction, as in FlexCDC.

`base.py` has the callbacks, `loading.py` finds the classes in `plugin` and `plugin_order`. Each
plugin of penstock has a module; `collecting.py` has their common part.
"""

from penstock.consume.plugins.base import (
    CALLBACKS,
    FlexCDC_Plugin,
    Instance,
    Plugin,
    PluginBase,
    Row,
    RowValues,
    Transaction,
)
from penstock.consume.plugins.debezium import DebeziumFile
from penstock.consume.plugins.example import Example
from penstock.consume.plugins.json_file import JsonFile
from penstock.consume.plugins.loading import (
    PluginIncomplete,
    PluginNotFound,
    load_plugins,
    row_values_of,
)
from penstock.consume.plugins.redis_cache import RedisCache
from penstock.consume.plugins.webhook import Webhook

__all__ = [
    "CALLBACKS",
    "DebeziumFile",
    "Example",
    "FlexCDC_Plugin",
    "Instance",
    "JsonFile",
    "Plugin",
    "PluginBase",
    "PluginIncomplete",
    "PluginNotFound",
    "RedisCache",
    "Row",
    "RowValues",
    "Transaction",
    "Webhook",
    "load_plugins",
    "row_values_of",
]
