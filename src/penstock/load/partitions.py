"""Turn the tasks of a Spark job into partitions of an RDD, call the work for each, and collect.

The workers import it. Not here: errors of a job (`session.py`); tasks that carry the data they read
(`shipping.py`).
"""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pyspark import SparkContext

from penstock.host.task_fence import TaskPermit

Call = Callable[[Iterable[Any]], Iterator[Any]]  # of one partition: an iterator of its one list
Spread = Callable[
    [SparkContext, Sequence[Sequence[Any]], Call], contextlib.AbstractContextManager[Any]
]


@contextlib.contextmanager
def spread_whole(
    context: SparkContext, partitions: Sequence[Sequence[Any]], call: Call
) -> Iterator[Any]:
    """Return the RDD of a job whose tasks have all that they need."""
    yield context.parallelize(list(partitions), len(partitions)).mapPartitions(call)


def collect(rdd: Any) -> list[Any]:
    """Run the job of an RDD and return all elements, in order of its partitions.

    `RDD.collect` would have Spark examine two functions in each job, and read two of its largest
    classes for it: half of a small job's time. The function of `collectAsync` is in a small class.
    Source: org.apache.spark.util.ClosureCleaner, SparkContext.runJob, AsyncRDDActions.

    Raises Py4JError, PySparkException, OSError or EOFError.
    """
    parts = rdd._jrdd.collectAsync().get()
    framed = io.BytesIO()
    for number in range(parts.size()):
        part = parts.get(number)
        framed.write(struct.pack(">i", len(part)))
        framed.write(part)
    framed.seek(0)
    return list(rdd._jrdd_deserializer.load_stream(framed))


class PartitionCall:
    """Caller of the work for a partition, which Spark passes as an iterator of one list
    of tasks.
    """

    def __init__(
        self,
        work: Callable[[Iterator[Any]], Iterable[Any]],
        permit: TaskPermit | None = None,
    ) -> None:
        """Keep the work, which gets the tasks of one partition. permit: held during the work."""
        self.work = work
        self.permit = permit

    def __call__(self, partition: Iterable[Sequence[Any]]) -> Iterator[Any]:
        """Yield the results of the work."""
        with contextlib.nullcontext() if self.permit is None else self.permit.hold():
            for tasks in partition:
                yield from self.work(iter(tasks))
