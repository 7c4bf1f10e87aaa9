"""Port to Spark's session for engines whose target needs it: jobs, and objects of its JVM.

Only `penstock.load` imports pyspark; an engine gets a `Jobs` from the loader. Not here: starting,
replacing and ending sessions (`load/session.py`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


class Jobs(Protocol):
    """Spark's session, as an engine sees it. It may be used from several threads.

    Attributes:
        slots_are_fixed: The workers run on this machine, and none joins or leaves.
    """

    slots_are_fixed: bool

    @property
    @abstractmethod
    def jvm(self) -> Any:
        """Return py4j's view of the JVM's packages."""
        ...

    @property
    @abstractmethod
    def spark(self) -> Any:
        """Return the JVM's SparkSession (Java object)."""
        ...

    @property
    def hadoop_conf(self) -> Any:
        """Return Hadoop's configuration (Java object), for file systems and catalogues."""
        return self.spark.sparkContext().hadoopConfiguration()

    @property
    @abstractmethod
    def parallelism(self) -> int:
        """Return the number of tasks that run at a time."""
        ...

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Return whether the JVM's process runs."""
        ...

    @abstractmethod
    def run(
        self,
        partitions: Sequence[Sequence[Task]],
        work: Callable[[Iterator[Task]], Iterable[Result]],
        *,
        description: str = "",
    ) -> list[Result]:
        """Run a job of one task per partition; return the results of all.

        Args:
            partitions: The works of each task.
            work: A function that workers can import; it gets the works of one partition.
            description: Of the job, for Spark's web pages.

        Raises the errors of a lost session, worker or executor, and of a failed job.
        """
        ...


GetJobs = Callable[[], Jobs]
"""Function that returns the present session, started now if necessary."""
