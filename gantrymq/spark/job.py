"""One Spark job in a thread of its own, so that the caller can watch it and a Ctrl-C can end it.

pyspark cannot be interrupted while it starts a JVM or waits for one: the JVM would stay behind, or a traceback would be
all that is left. Here the thread that is interrupted only waits, and takes the job back in good order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from gantrymq.spark.errors import SparkError, reason
from gantrymq.spark.local import find_running, register, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS = 0.2
"""How often progress is asked for."""

Progress = Callable[[int, int], None]
"""Called with the tasks that are done, and all of them."""


def run_job(work: Callable[[SparkSession], None], spark: SparkSession | None, progress: Progress | None) -> None:
    """Call ``work`` with ``spark``, or with a local session that is stopped afterwards.

    Raises :class:`SparkError` with the one line that matters when Spark fails. On KeyboardInterrupt (or whatever
    ``progress`` raises) the job is cancelled first; while Spark is still starting, that waits until it has started.
    """
    job = _Job(work, spark)
    job.thread.start()
    try:
        while not job.done.wait(POLL_SECONDS):
            if progress is not None:
                job.report(progress)
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

    def report(self, progress: Progress) -> None:
        """Pass on how far the job is, once Spark knows."""
        if self._spark is None:
            return
        tracker = self._spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job_id) for job_id in tracker.getJobIdsForGroup(self._group)]
        stages = [tracker.getStageInfo(stage_id) for job in jobs if job is not None for stage_id in job.stageIds]
        total = sum(stage.numTasks for stage in stages if stage is not None)
        if total:
            progress(sum(stage.numCompletedTasks for stage in stages if stage is not None), total)

    def cancel(self) -> None:
        """End the job and wait until its thread has ended."""
        self._cancelled = True
        while not self.done.wait(POLL_SECONDS):
            # Again and again: Spark forgets a cancellation that comes before the job's first stage.
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
            self.error = SparkError(reason(error))
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
        # The error has the reason; the JVM's own words about it are stack traces.
        ours = session(log_level="off")
        try:
            yield ours
        finally:
            self._spark = None
            ours.stop()
