"""Objects of the JVM, by py4j: lists and texts in one call, exceptions as typed errors.

A call crosses a socket, so a list goes over as one text. An exception of Java arrives as
py4j's error or, for some classes, as pyspark's; both have Java's exception, and neither package is
imported here. Not here: classes of the formats (`engines/delta`, `engines/iceberg`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.engines.lake.format import CommitRefused, LakeFailed, LakeUnreachable
from penstock.engines.lake.object_store import CHECK_DISK, hint_of
from penstock.model import PenstockError

_CAUSES_MAX = 8
_MESSAGE_CHARACTERS = 500
# Simple names of the exceptions by which Delta and Iceberg refuse a commit. Sources:
# org.apache.spark.sql.delta.DeltaConcurrentModificationException and its subclasses;
# org.apache.iceberg.exceptions.
_REFUSALS = frozenset(
    {
        "CommitFailedException",
        "ConcurrentAppendException",
        "ConcurrentDeleteDeleteException",
        "ConcurrentDeleteReadException",
        "ConcurrentModificationException",
        "ConcurrentTransactionException",
        "ConcurrentWriteException",
        "DeltaConcurrentModificationException",
        "MetadataChangedException",
        "ProtocolChangedException",
        "ValidationException",
    }
)
_UNREACHABLE = frozenset(
    {
        "AccessControlException",
        "AccessDeniedException",
        "AWSBadRequestException",
        "AWSNoResponseException",
        "ConnectException",
        "NoAuthWithAWSException",
        "NoRouteToHostException",
        "RESTException",
        "SdkClientException",
        "ServiceFailureException",
        "ServiceUnavailableException",
        "SocketException",
        "SocketTimeoutException",
        "UncheckedSQLException",
        "UnknownStoreException",
        "UnknownHostException",
    }
)


def java_exception(error: BaseException) -> Any:
    """Return the Java exception behind an error of py4j or pyspark; None if there is none."""
    origin = getattr(error, "_origin", None)  # of pyspark: the exception itself
    if origin is not None and not isinstance(origin, BaseException):
        return origin
    return getattr(origin or error, "java_exception", None)


def class_names(error: BaseException) -> tuple[str, ...]:
    """Return the simple class names of a Java exception and its causes, the outermost first.

    Each is followed by those of its superclasses. Empty if Java does not answer any more.
    """
    names: list[str] = []
    try:
        java = java_exception(error)
        for _ in range(_CAUSES_MAX):
            if java is None:
                break
            kind = java.getClass()
            while kind is not None and str(kind.getName()) != "java.lang.Object":
                names.append(str(kind.getSimpleName()))
                kind = kind.getSuperclass()
            java = java.getCause()
    except Exception:  # the connection to the JVM is gone, whichever class says so
        return tuple(names)
    return tuple(names)


def message_of(error: BaseException) -> str:
    """Return the message of a Java exception, or of another error, in one line."""
    text = ""
    try:
        java = java_exception(error)
        text = str(java.toString()) if java is not None else ""
    except Exception:  # as above
        text = ""
    line = " ".join((text or str(error) or type(error).__name__).split())
    return line[:_MESSAGE_CHARACTERS]


def as_typed(doing: str, error: BaseException) -> PenstockError:
    """Return the typed error for an exception of the JVM. doing: the work, as "commit to x"."""
    names = class_names(error)
    said = message_of(error)
    if _REFUSALS.intersection(names):
        return CommitRefused(
            f"cannot {doing}: another writer was faster: {said}",
            hint="penstock looks at the table again and retries automatically.",
        )
    if _UNREACHABLE.intersection(names):
        return LakeUnreachable(
            f"cannot {doing}: {said}",
            hint=_hint_of(said),
        )
    return LakeFailed(
        f"cannot {doing}: {said}",
        hint="penstock retries automatically; look at spark.log in the run directory if it recurs.",
    )


def _hint_of(said: str) -> str:
    found = hint_of(said)
    if found != CHECK_DISK:
        return found
    return "Check that the lake's storage and catalogue answer, and the credentials."


@contextmanager
def typed_errors(doing: str) -> Iterator[None]:
    """Convert the exceptions of calls into the JVM. Typed errors pass. doing: see `as_typed`."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        if java_exception(error) is None and not _is_of_bridge(error):
            raise
        raise as_typed(doing, error) from error


def _is_of_bridge(error: Exception) -> bool:
    """Return whether py4j or the socket to the JVM raised an error."""
    return isinstance(error, OSError) or type(error).__module__.startswith(("py4j", "pyspark"))


def java_path(location: str) -> str:
    """Return a location as Hadoop's classes take it."""
    if location.startswith("s3://"):
        return f"s3a://{location.removeprefix('s3://')}"
    return location


def join_texts(jvm: Any, texts: Any) -> str:
    """Return a Java collection of texts as one, with a line break between two."""
    return str(jvm.java.lang.String.join("\n", texts))


def as_seq(jvm: Any, items: Any) -> Any:
    """Return a Java list as Scala's immutable Seq."""
    return jvm.scala.jdk.javaapi.CollectionConverters.asScala(items).toSeq()


def none_of(jvm: Any) -> Any:
    """Return Scala's None."""
    return jvm.scala.Option.empty()


def some_of(jvm: Any, value: Any) -> Any:
    """Return Scala's Some of a value."""
    return jvm.scala.Option.apply(value)


def scala_object(package: Any, name: str) -> Any:
    """Return a Scala object that is nested in another one. name: as `Operations$Update`."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")
