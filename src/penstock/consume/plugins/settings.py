"""Section of a plugin in the settings, checked."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from penstock.consume.plugins.base import Instance
from penstock.model import PenstockError

_FLAGS = {
    **dict.fromkeys(("true", "on", "yes", "1"), True),
    **dict.fromkeys(("false", "off", "no", "0", "none", ""), False),
}


class PluginSettingInvalid(PenstockError):
    """A key of a plugin's section is missing, unknown, or has an invalid value."""

    code = "FX14"


class PluginSection:
    """One section: texts by key, with defaults. Unknown keys are refused."""

    def __init__(self, instance: Instance, name: str, defaults: Mapping[str, str | None]) -> None:
        """Read the section. Raises PluginSettingInvalid.

        Args:
            instance: FlexCDC.
            name: of the section.
            defaults: by key; None if it must be given.
        """
        self.name = name
        given = instance.settings.get(name, {})
        for key in given:
            if key not in defaults:
                near = difflib.get_close_matches(key, defaults, n=1, cutoff=0.5)
                known = ", ".join(sorted(defaults))
                raise PluginSettingInvalid(
                    f"[{name}] has an unknown key {key}",
                    hint=f"Did you mean {near[0]}?" if near else f"Known here: {known}.",
                    key=f"{name}.{key}",
                )
        self._texts = {key: given.get(key) or default for key, default in defaults.items()}
        self._texts |= {key: text for key, text in given.items() if defaults[key] is not None}
        for key, text in self._texts.items():
            if text is None:
                raise self.invalid(key, "is missing", f"Write {key} = VALUE below [{name}].")

    def invalid(self, key: str, said: str, hint: str) -> PluginSettingInvalid:
        """Return the error for a key."""
        return PluginSettingInvalid(
            f"[{self.name}] {key} {said}", hint=hint, key=f"{self.name}.{key}"
        )

    def text(self, key: str) -> str:
        """Return the value as it is written."""
        return self._texts[key] or ""

    def flag(self, key: str) -> bool:
        """Return a value that is true or false."""
        text = self.text(key)
        if text.lower() not in _FLAGS:
            raise self.invalid(key, f"is {text!r}", f"Write {key} = true or {key} = false.")
        return _FLAGS[text.lower()]

    def number(self, key: str, *, least: float = 0) -> float:
        """Return a number that is at least `least`."""
        text = self.text(key)
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not least <= number < 2**31:
            raise self.invalid(key, f"is {text!r}", f"Write a number, {least:g} or more.")
        return number

    def tables(self, key: str) -> frozenset[str]:
        """Return a list of `schema.table`, separated by commas."""
        names = [name.strip() for name in self.text(key).split(",") if name.strip()]
        for name in names:
            schema, dot, table = name.partition(".")
            if not (schema and dot and table):
                raise self.invalid(
                    key,
                    f"names {name!r}, which is not a table",
                    f"Write {key} = schema.table, schema.table.",
                )
        return frozenset(names)
