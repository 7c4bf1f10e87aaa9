"""Loading of the plugins that the settings name: modules and files, and the classes in them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.consume.plugins.base import (
    CALLBACKS,
    TRUNCATE,
    TRUNCATE_ARGUMENTS,
    Plugin,
    RowValues,
)
from penstock.model import PenstockError

CLASS_DEFAULT = "FlexCDC_Plugin"


class PluginNotFound(PenstockError):
    """A name in `plugin` or `plugin_order` cannot be imported, or does not exist."""

    code = "FX10"


class PluginIncomplete(PenstockError):
    """A plugin lacks one of the nine callbacks, or has one that takes other arguments."""

    code = "FX11"


def load_plugins(
    plugins: Sequence[str], order: Sequence[str], directory: Path
) -> list[tuple[str, Plugin]]:
    """Return the plugins in the order in which they are called, each with its name.

    A class is called without arguments. Raises PluginNotFound, PluginIncomplete.

    Args:
        plugins: `module:attribute`, `module`, or a file `name.py`.
        order: names of the classes, or attributes, to call; by default those that `plugins` names,
            and for a module alone the class FlexCDC_Plugin.
        directory: base of relative files; modules are searched there, too.
    """
    modules: list[ModuleType] = []
    named: list[tuple[str, Any]] = []
    for text in plugins:
        place, _, attribute = text.partition(":")
        module = _module(place.strip(), directory)
        modules.append(module)
        if attribute:
            named.append((attribute, _attribute(module, attribute, text)))
        elif not order:
            named.append((CLASS_DEFAULT, _attribute(module, CLASS_DEFAULT, text)))
    if order:
        given = named
        named = [(name, _find_ordered(name, given, modules)) for name in order]
        _check_all_called(given, named)
    return [(name, _plugin(name, found)) for name, found in named]


def row_values_of(plugin: Plugin, default: str) -> RowValues:
    """Return the form of a plugin's rows: its own choice, or the settings'. Raises ValueError."""
    return RowValues(getattr(plugin, "row_values", None) or default)


def _module(place: str, directory: Path) -> ModuleType:
    try:
        if place.endswith(".py"):
            return _from_file(directory / place)
        if str(directory) not in sys.path:
            sys.path.insert(0, str(directory))
        return import_module(place)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise PluginNotFound(
            f"plugin {place} cannot be imported: {type(error).__name__}: {error}",
            hint="Write plugin = module:Class; the module is looked for in the folder of the ini "
            "or pipeline file and among what is installed.",
            plugin=place,
        ) from error


def _from_file(path: Path) -> ModuleType:
    name = f"penstock_plugin_{path.stem}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a module")
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _attribute(module: ModuleType, name: str, text: str) -> Any:
    found = getattr(module, name, None)
    if found is None:
        raise PluginNotFound(
            f"plugin {text}: {module.__name__} has no {name}",
            hint=f"Write plugin = {module.__name__}:Class with a class that it has.",
            plugin=text,
        )
    return found


def _check_all_called(given: Sequence[tuple[str, Any]], called: Sequence[tuple[str, Any]]) -> None:
    """Check that plugin_order names each plugin of `plugin`. Raises PluginNotFound."""
    left_out = [name for name, found in given if not any(found is one for _, one in called)]
    if left_out:
        raise PluginNotFound(
            f"plugin names {left_out[0]}, and plugin_order leaves it out: it would get no change",
            hint=f"Add {left_out[0]} to plugin_order, or remove it from plugin.",
            plugin=left_out[0],
        )


def _find_ordered(
    name: str, named: Sequence[tuple[str, Any]], modules: Sequence[ModuleType]
) -> Any:
    """Return the plugin for a name in plugin_order. Raises PluginNotFound."""
    found = [one for given, one in named if given == name]
    if not found:
        found = [one for module in modules if (one := getattr(module, name, None)) is not None]
        found = [one for at, one in enumerate(found) if not any(one is x for x in found[:at])]
    if len(found) == 1:
        return found[0]
    if found:
        raise PluginNotFound(
            f"plugin_order names {name}, and {len(found)} plugins have that name",
            hint="Give one of the classes another name, or leave plugin_order out: plugins are "
            "then called in the order of plugin.",
            plugin=name,
        )
    raise PluginNotFound(
        f"plugin_order names {name}, which no module of plugin has",
        hint="Correct plugin_order, or add the module that has it to plugin.",
        plugin=name,
    )


def _plugin(name: str, found: Any) -> Plugin:
    if isinstance(found, type):
        try:
            found = found()
        except (Exception, SystemExit) as error:
            raise PluginNotFound(
                f"plugin {name} cannot be created: {type(error).__name__}: {error}",
                hint="A plugin's class is called without arguments: give those that it has "
                "defaults, and read settings in plugin_init.",
                plugin=name,
            ) from error
    missing = [one for one in CALLBACKS if not callable(getattr(found, one, None))]
    if missing:
        raise PluginIncomplete(
            f"plugin {name} lacks {', '.join(missing)}",
            hint="Define all nine callbacks, or derive the class from "
            "penstock.consume.plugins.PluginBase, which has them. Then give the same command "
            "again.",
            plugin=name,
            missing=missing,
        )
    for callback, count in (CALLBACKS | {TRUNCATE: TRUNCATE_ARGUMENTS}).items():
        _check_arguments(name, found, callback, count)
    try:
        row_values_of(found, RowValues.PYTHON)
    except ValueError as error:
        raise PluginIncomplete(
            f"plugin {name}: row_values is {found.row_values!r}",
            hint=f"Set row_values to {' or '.join(repr(str(one)) for one in RowValues)}.",
            plugin=name,
        ) from error
    plugin: Plugin = found
    return plugin


def _check_arguments(name: str, plugin: Any, callback: str, count: int) -> None:
    """Check that a callback can be called, before the first row. Raises PluginIncomplete."""
    function = getattr(plugin, callback, None)
    if function is None:
        return
    try:
        inspect.signature(function).bind(*[None] * count)
    except ValueError:
        return  # not a Python function: unknown before the call
    except TypeError as error:
        raise PluginIncomplete(
            f"plugin {name} has a {callback} that does not take {count} arguments: {error}",
            hint="docs/flexcdc.md has the callbacks with their arguments; correct the plugin, then "
            "start again: penstock flexcdc --ini FILE run.",
            plugin=name,
            callback=callback,
        ) from error
