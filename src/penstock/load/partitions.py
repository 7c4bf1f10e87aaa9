"""How the tasks of a Spark job become the partitions of an RDD, and what is called for each.

Imported in the workers. Not here: running the job (`session.py`); tasks that bring along what they
read (`shipping.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pyspark import SparkContext

Call = Callable[[Iterable[Any]], Iterator[Any]]  # of one partition: an iterator of its one list
Spread = Callable[
    [SparkContext, Sequence[Sequence[Any]], Call], contextlib.AbstractContextManager[Any]
]


@contextlib.contextmanager
def spread_whole(
    context: SparkContext, partitions: Sequence[Sequence[Any]], call: Call
) -> Iterator[Any]:
    """The RDD of a job whose tasks have all that they need."""
    yield context.parallelize(list(partitions), len(partitions)).mapPartitions(call)


class PartitionCall:
    """Unpacks a partition: Spark hands over an iterator of the one list of tasks in it."""

    def __init__(self, work: Callable[[Iterator[Any]], Iterable[Any]]) -> None:
        """work: gets the tasks of one partition."""
        self.work = work

    def __call__(self, partition: Iterable[Sequence[Any]]) -> Iterator[Any]:
        """What the work yields."""
        for tasks in partition:
            yield from self.work(iter(tasks))
