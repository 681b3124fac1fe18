"""Runs one Spark job in a separate thread, so that the caller can report progress and Ctrl-C can cancel it.

pyspark cannot be interrupted while it starts a JVM or waits for one: the JVM would keep running, or the user would get
a traceback. Here the interrupted thread only waits, and cancels the job cleanly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from gantrymq.spark.errors import own_error
from gantrymq.spark.local import find_running, register, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS = 0.2
"""The interval of progress checks, in seconds."""


def run_job(work: Callable[[SparkSession], None], spark: SparkSession | None, poll: Callable[[], None] | None) -> None:
    """Call ``work`` with ``spark``, or with a local session that is stopped afterwards.

    Raises :class:`~gantrymq.spark.errors.SparkError` with the relevant line if Spark fails, of the kind that a task
    raised. Calls ``poll`` every :data:`POLL_SECONDS` while the job runs. On KeyboardInterrupt, or an error of ``poll``,
    it cancels the job first; if Spark is still starting, it waits for the start.
    """
    job = _Job(work, spark)
    job.thread.start()
    try:
        while not job.done.wait(POLL_SECONDS):
            if poll is not None and job.is_running():
                poll()
    except BaseException:
        job.cancel()
        raise
    job.thread.join()
    if job.error is not None:
        raise job.error


class _Job:
    def __init__(self, work: Callable[[SparkSession], None], given: SparkSession | None) -> None:
        self.error: BaseException | None = None
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._run, name="gantrymq-spark", daemon=True)
        self._work = work
        self._given = given or find_running()
        self._group = f"gantrymq-{uuid4()}"
        self._spark: SparkSession | None = None
        self._cancelled = False

    def is_running(self) -> bool:
        """Whether Spark has started."""
        return self._spark is not None

    def cancel(self) -> None:
        """Cancel the job and wait until its thread has ended."""
        self._cancelled = True
        while not self.done.wait(POLL_SECONDS):
            # Repeat it, because Spark forgets a cancellation before the first stage of the job.
            if self._spark is not None:
                self._spark.sparkContext.cancelJobGroup(self._group)
        self.thread.join()

    def _run(self) -> None:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            with self._session() as spark:
                spark.sparkContext.setJobGroup(self._group, "gantrymq", interruptOnCancel=True)
                self._spark = spark
                if not self._cancelled:
                    self._work(spark)
                self._spark = None
        except (PySparkException, Py4JError) as error:
            self.error = own_error(error)
            self.error.__cause__ = error
        except BaseException as error:
            self.error = error
        finally:
            self._spark = None
            self.done.set()

    @contextmanager
    def _session(self) -> Iterator[SparkSession]:
        if self._given is not None:
            register(self._given)
            yield self._given
            return
        # The error has the reason; the JVM's output about it is stack traces.
        ours = session(log_level="off")
        try:
            yield ours
        finally:
            self._spark = None
            ours.stop()
