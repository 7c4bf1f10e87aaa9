"""Iceberg's Java classes as penstock calls them.

`Iceberg` is a view of the classes in one JVM. Not here: the order of the calls (`catalogue.py`,
`table.py`), and errors of Java (`engines/lake/java.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MANY = 16
"""Number of files from which on a loop in Java is cheaper than a call for each."""


class Iceberg:
    """Iceberg's classes in a JVM."""

    def __init__(self, jvm: Any) -> None:
        """Keep the view. jvm: py4j's view of the JVM's packages."""
        self._jvm = jvm
        self.classes = jvm.org.apache.iceberg
        self._task_to_json: Any = None
        self._parser: Any = None
        self._methods: dict[tuple[str, str, str], Any] = {}

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

    def give_files(
        self, update: Any, kind: str, method: str, entries: Sequence[Mapping[str, Any]], spec: Any
    ) -> None:
        """Give files to an update by one of its methods.

        If there are many, one JSON text has all of them, and Java reads it in a loop of its own: a
        batch may replace the deletions of a thousand files.

        Args:
            update: Iceberg's update.
            kind: Its interface, such as `RowDelta`.
            method: The method's name.
            entries: JSON objects of Iceberg's `ContentFileParser`: data files, or deletions.
            spec: The table's partition spec.
        """
        if len(entries) < MANY:
            for entry in entries:
                getattr(update, method)(self._parse_file(entry, spec))
            return
        nodes = self.classes.util.JsonUtil.mapper().readTree(json.dumps(entries))
        is_data = entries[0]["content"] == "data"
        take = self._find_method(kind, method, "DataFile" if is_data else "DeleteFile")
        stream = self._jvm.java.util.stream.StreamSupport.stream(nodes.spliterator(), False)
        parse = self._invoke.MethodHandles.insertArguments(
            self._find_parser(), 1, self._array_of(spec)
        )
        stream.map(self._implement("Function", parse)).forEach(
            self._implement("Consumer", take.bindTo(update))
        )

    def _parse_file(self, entry: Mapping[str, Any], spec: Any) -> Any:
        node = self.classes.util.JsonUtil.mapper().readTree(json.dumps(entry))
        return self.classes.ContentFileParser.fromJson(node, spec)

    @property
    def _invoke(self) -> Any:
        return self._jvm.java.lang.invoke

    def _class(self, name: str) -> Any:
        """Return a class by its name, among Iceberg's if that has no package."""
        full = name if "." in name else f"org.apache.iceberg.{name}"
        return self._jvm.java.lang.Class.forName(full)

    def _array_of(self, item: Any) -> Any:
        items = self._jvm.java.util.ArrayList()
        items.add(item)
        return items.toArray()

    def _implement(self, interface: str, handle: Any) -> Any:
        """Return a method as an interface of `java.util.function`."""
        function = self._class(f"java.util.function.{interface}")
        return self._invoke.MethodHandleProxies.asInterfaceInstance(function, handle)

    def _find_parser(self) -> Any:
        """Return Iceberg's function from a file's JSON and a partition spec to the file."""
        if self._parser is None:
            found = [
                method
                for method in self._class("ContentFileParser").getMethods()
                if method.getName() == "fromJson"
                and str(method.getParameterTypes()[1].getSimpleName()) == "PartitionSpec"
            ]
            self._parser = self._invoke.MethodHandles.publicLookup().unreflect(found[0])
        return self._parser

    def _find_method(self, kind: str, method: str, parameter: str) -> Any:
        """Return a method of an update, which takes a file and returns the update."""
        key = (kind, method, parameter)
        if key not in self._methods:
            owner = self._class(kind)
            signature = self._invoke.MethodType.methodType(owner, self._class(parameter))
            lookup = self._invoke.MethodHandles.publicLookup()
            self._methods[key] = lookup.findVirtual(owner, method, signature)
        return self._methods[key]

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
        signature = self._invoke.MethodType.methodType(
            self._class("java.lang.String"), self._class("FileScanTask")
        )
        lookup = self._invoke.MethodHandles.publicLookup()
        handle = lookup.findStatic(self._class("ScanTaskParser"), "toJson", signature)
        return self._implement("Function", handle)
