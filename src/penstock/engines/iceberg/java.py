"""Iceberg's Java classes as penstock calls them.

`Iceberg` is a view of the classes in one JVM. Not here: the order of the calls (`catalogue.py`,
`table.py`), and errors of Java (`engines/lake/java.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class Iceberg:
    """Iceberg's classes in a JVM."""

    def __init__(self, jvm: Any) -> None:
        """Keep the view. jvm: py4j's view of the JVM's packages."""
        self._jvm = jvm
        self.classes = jvm.org.apache.iceberg
        self._task_to_json: Any = None

    @property
    def is_present(self) -> bool:
        """Return whether the classes are on the class path."""
        # py4j answers an unknown class with a package of this name.
        return "JavaClass" in type(self.classes.CatalogUtil).__name__

    def identifier(self, levels: Sequence[str], name: str) -> Any:
        """Return the identifier of a table, whose names may have dots."""
        text = json.dumps({"namespace": list(levels), "name": name})
        return self.classes.catalog.TableIdentifierParser.fromJson(text)

    def namespace(self, levels: Sequence[str]) -> Any:
        """Return a namespace, whose levels may have dots."""
        return self.identifier(levels, "none").namespace()

    def map_of(self, items: Mapping[str, str]) -> Any:
        """Return a Java map of texts."""
        java = self._jvm.java.util.HashMap()
        for name, value in items.items():
            java.put(name, value)
        return java

    def list_of(self, items: Iterable[Any]) -> Any:
        """Return a Java list."""
        java = self._jvm.java.util.ArrayList()
        for item in items:
            java.add(item)
        return java

    def content_file(self, entry_json: str, spec: Any) -> Any:
        """Return the data file or deletions of an entry in JSON."""
        node = self.classes.util.JsonUtil.mapper().readTree(entry_json)
        return self.classes.ContentFileParser.fromJson(node, spec)

    def list_tasks(self, scan: Any) -> str:
        """Return a JSON text for each data file of a scan, on a line each, by one call."""
        if self._task_to_json is None:
            self._task_to_json = self._find_task_to_json()
        tasks = scan.planFiles()
        try:
            util = self._jvm.java.util
            spliterator = util.Spliterators.spliteratorUnknownSize(tasks.iterator(), 0)
            stream = util.stream.StreamSupport.stream(spliterator, False)
            joining = util.stream.Collectors.joining("\n")
            return str(stream.map(self._task_to_json).collect(joining))
        finally:
            tasks.close()

    def _find_task_to_json(self) -> Any:
        """Return a Java function from a task to its JSON."""
        invoke, by_name = self._jvm.java.lang.invoke, self._jvm.java.lang.Class.forName
        kind = invoke.MethodType.methodType(
            by_name("java.lang.String"), by_name("org.apache.iceberg.FileScanTask")
        )
        handle = invoke.MethodHandles.publicLookup().findStatic(
            by_name("org.apache.iceberg.ScanTaskParser"), "toJson", kind
        )
        function = by_name("java.util.function.Function")
        return invoke.MethodHandleProxies.asInterfaceInstance(function, handle)
