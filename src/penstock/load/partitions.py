"""Turn the tasks of a Spark job into partitions of an RDD, and call the work for each.

The workers import it. Not here: running the job (`session.py`); tasks that carry the data they read
(`shipping.py`).
"""

from __future__ import annotations

import contextlib
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
