"""Decides when a run starts, follows it, and keeps what it reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs
import structlog
import trio

from gantrymq.exporter.job import Job, Report
from gantrymq.exporter.process import RunFailed, run_worker
from gantrymq.plugins.exporter.config import ExporterConfig
from gantrymq.plugins.exporter.positions import ends_before, find_topics, floor_of, lag_of, lowest_ends
from gantrymq.plugins.exporter.state import (
    STARTS_PATH,
    ExporterState,
    LastRun,
    Starts,
    encode_state,
    load_starts,
    remove_starts,
    save_starts,
)
from gantrymq.plugins.interfaces import TopicTable
from gantrymq.remoting.address import format_address, parse_address

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

CHECK_S: Final = 1.0
"""The interval at which the size of the log is checked, in seconds."""
_ANY_HOST: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to connect to a broker that listens there

log = structlog.get_logger("gantrymq.exporter")


@attrs.define
class Totals:
    """Since the start of the broker."""

    runs: dict[str, int] = attrs.field(factory=lambda: {"ok": 0, "failed": 0})
    rows: int = 0
    bytes: int = 0
    lost: int = 0


class Exporter:
    """Starts the runs of one broker, one at a time. All methods are for the broker's thread."""

    def __init__(self, broker: Broker, config: ExporterConfig, to: str, state: ExporterState) -> None:
        self.to = to
        self.state = state
        self.totals = Totals()
        self.pid: int | None = None
        """The process id of the present run."""
        self.progress: Report | None = None
        self._broker = broker
        self._config = config
        self._asked = trio.Event()
        self._listens = trio.Event()
        self._changed = False
        self._starts: dict[str, dict[int, int]] = {}
        """Where the queues of topics that are not in :attr:`_checked` ended at the start of the broker."""
        self._checked: set[str] = set()
        """Topics whose export was compared with that."""
        self._failures: dict[str, str] = {}
        self._run = LastRun()
        self._broke = ""
        """The topic during whose export the process of the last run ended."""
        self._last_idle = 0.0
        """When a check last found nothing new to export, in seconds since 1970."""
        self._log_end = 0
        """The log's end at the start of the last run."""

    # -------------------------------------------------------------------------------------------------- commands

    def listens(self) -> None:
        """Note that the broker serves clients from now on."""
        self._listens.set()

    def run_now(self) -> None:
        """Start a run soon, also while paused; if one is running, another one after it."""
        self._asked.set()

    def pause(self, paused: bool) -> None:
        """Start no run until resumed, also after a restart; a run that is going on ends as usual."""
        self.state.paused = paused
        self._changed = True

    def changes(self) -> bytes | None:
        """Return the state if it has changed since the last call."""
        changed, self._changed = self._changed, False
        return encode_state(self.state) if changed else None

    def recovered(self) -> None:
        """Note where the queues end, before the broker serves.

        An export that is further has messages that the broker has lost, or those of a topic that was deleted. Later
        this could not be found: new messages get those offsets, and the queues grow beyond them.
        """
        broker, state, patterns = self._broker, self.state, self._config.topics
        self._checked, self._starts = set(), {}
        if broker.broker_id:
            remove_starts(broker.env, broker.root)
            return
        for topic, ends in list(state.ends.items()):
            if ends_before(broker, topic, ends):  # the next run compares the export itself, which may have other ends
                del state.ends[topic]
                self._changed = True
        self._starts = lowest_ends(broker, patterns, load_starts(broker.env, broker.root, self.to))
        try:
            save_starts(broker.env, broker.root, Starts(self.to, patterns, self._starts, []))
        except OSError as error:
            log.warning("export_starts_not_written", path=STARTS_PATH, reason=error.strerror or str(error))

    async def _compare(self) -> None:
        """Compare the export with the ends at the start, also while paused.

        Before the first run that is due, others may export messages of after the start, which would pass for lost ones.
        If this fails, that run compares.
        """
        topics = find_topics(self._broker, self._config.topics)
        topics = {topic: count for topic, count in topics.items() if topic not in self._checked}
        if not topics:
            return
        job = attrs.evolve(self._job(topics), engine="local", compares_only=True)
        try:
            await run_worker(job, self._config.timeout, self._take_comparison, lambda _pid: None)
        except RunFailed as failure:
            log.info("export_not_compared", reason=str(failure), to=self.to)

    async def _take_comparison(self, report: Report) -> None:
        if report.is_ahead:
            self._set_ahead(report)
        elif not report.error:
            await self._set_checked(report.topic)

    def _set_ahead(self, report: Report) -> None:
        self.state.ahead[report.topic] = dict(report.ends)
        self.state.ends.pop(report.topic, None)
        self._changed = True

    async def _set_checked(self, topic: str) -> None:
        """Note durably that the export of ``topic`` was compared. Raises :class:`RunFailed` if that fails."""
        broker, checked = self._broker, self._checked | {topic}
        starts = {name: ends for name, ends in self._starts.items() if name != topic}
        noted = Starts(self.to, self._config.topics, starts, sorted(checked))
        try:
            await trio.to_thread.run_sync(save_starts, broker.env, broker.root, noted)
        except OSError as error:
            raise RunFailed(f"cannot write {broker.root}/{STARTS_PATH}: {error.strerror or error}") from None
        self._starts, self._checked = starts, checked

    # ------------------------------------------------------------------------------------------------------ runs

    async def run(self) -> None:
        """Run until cancelled."""
        await self._listens.wait()
        self._log_end = self._broker.log.end
        await self._compare()
        while True:
            await self._wait_until_due()
            await self._run_once()

    def next_start(self) -> float:
        """Return when the next run is due by time, in seconds since 1970, unless paused."""
        state, config = self.state, self._config
        if state.failures:
            return state.last.ended + min(config.every, config.retry * 2.0 ** min(state.failures - 1, 32))
        return max(state.last.started, self._last_idle) + config.every

    async def _wait_until_due(self) -> None:
        while not self._asked.is_set():
            if not self.state.paused and (self._now() >= self.next_start() or self._has_grown()):
                return
            with trio.move_on_after(CHECK_S):
                await self._asked.wait()
        self._asked = trio.Event()

    def _has_grown(self) -> bool:
        limit = self._config.at_bytes
        return bool(limit) and not self.state.failures and self._broker.log.end - self._log_end >= limit

    async def _run_once(self) -> None:
        broker = self._broker
        self._run, self._failures = LastRun(started=self._now()), {}
        self._log_end = broker.log.end
        topics = find_topics(broker, self._config.topics)
        lag = lag_of(broker, topics, self.state.ends)
        known = self.state.ends.keys()
        # Without new messages no process is started: each check of an idle broker would cost one.
        current = {topic for topic in known & self._checked if not lag.get(topic)}
        behind = {topic: count for topic, count in topics.items() if topic not in current}
        table = broker.registry.get(TopicTable)
        for topic in known - topics.keys():
            if table.get(topic) is not None:  # the ends of a deleted topic count if it is created again
                del self.state.ends[topic]
        if not behind and not self.state.failures:
            self._last_idle = self._run.started
            return
        error = ""
        job, self._broke = self._job(behind or topics), ""
        try:
            await run_worker(job, self._config.timeout, self._take, self._started)
        except RunFailed as failure:
            error = str(failure)
            self._broke = "" if self.progress is None else self.progress.topic
        finally:
            self.pid = self.progress = None
        self._end(error or "; ".join(f"{topic}: {reason}" for topic, reason in self._failures.items()))

    def _started(self, pid: int) -> None:
        self.pid = pid
        log.info("export_started", pid=pid, to=self.to)

    async def _take(self, report: Report) -> None:
        if report.waits:  # at the next start after a kill, messages that it publishes now would pass for lost ones
            await self._set_checked(report.topic)
        if not report.ended:
            self.progress = report
            return
        self.progress = None
        run, totals = self._run, self.totals
        run.rows, run.bytes, run.files = run.rows + report.rows, run.bytes + report.bytes, run.files + report.files
        totals.rows, totals.bytes = totals.rows + report.rows, totals.bytes + report.bytes
        if report.lost:
            run.lost, totals.lost = run.lost + report.lost, totals.lost + report.lost
            log.warning("messages_not_exported", topic=report.topic, messages=report.lost, to=self.to)
        if not report.error:
            self.state.ahead.pop(report.topic, None)
        if report.is_ahead:
            self._set_ahead(report)
        if report.topic not in self.state.ahead and (report.ends or not report.error):
            self.state.ends[report.topic] = dict(report.ends)
        if report.error:
            self._failures[report.topic] = report.error
        self._changed = True

    def _end(self, error: str) -> None:
        state = self.state
        self._run.ended, self._run.error = self._now(), error
        state.last = self._run
        self._changed = True
        if error:
            state.failures += 1
            self.totals.runs["failed"] += 1
            log.warning("export_failed", reason=error, failures=state.failures, to=self.to)
        else:
            state.failures = 0
            state.last_success = self._run.ended
            self.totals.runs["ok"] += 1
            log.info("export_ended", messages=self._run.rows, files=self._run.files, to=self.to)

    def _job(self, topics: dict[str, int]) -> Job:
        config = self._config
        host, port = parse_address(self._broker.listening)
        security = {"accessKey": config.access_key, "secretKey": config.secret_key, "tlsCaFile": config.tls_ca_file}
        security = {name: value for name, value in security.items() if value}
        if config.tls:
            security["tls"] = "true"
        ahead = {topic: ends for topic, ends in self.state.ahead.items() if topic in topics}
        starts = {topic: self._starts.get(topic, {}) for topic in topics if topic not in self._checked}
        return Job(
            self._broker.name, format_address(_ANY_HOST.get(host, host), port), topics, self.to, config.format,
            config.engine, config.file_rows, config.file_bytes, config.skip_lost, security, config.nice, config.cores,
            config.memory, ahead, starts, config.bad_bodies == "null", self._broke,
        )  # fmt: skip

    def _now(self) -> float:
        return self._broker.env.wall_ms() / 1000

    # --------------------------------------------------------------------------------------------------- figures

    def lag(self) -> dict[str, int]:
        """Return, by topic, the number of messages that are not exported yet."""
        return lag_of(self._broker, find_topics(self._broker, self._config.topics), self.state.ends)

    def floor(self) -> int:
        """Return the log offset from which on log files are kept for the export."""
        oldest_ms = int((self._now() - self._config.hold_age) * 1000)
        topics = find_topics(self._broker, self._config.topics)
        return floor_of(self._broker, topics, self.state.ends, self._config.hold_bytes, oldest_ms)

    def status(self) -> dict[str, Any]:
        """Return what ``gantrymq export status --broker`` shows."""
        state, progress = self.state, self.progress
        doing = "running" if self.pid is not None else "paused" if state.paused else "waiting"
        return {
            "broker": self._broker.name,
            "to": self.to,
            "format": self._config.format,
            "engine": self._config.engine,
            "state": doing,
            "paused": state.paused,
            "pid": self.pid,
            "progress": None if progress is None else attrs.asdict(progress),
            "next_start": None if state.paused else self.next_start(),
            "failures": state.failures,
            "last_success": state.last_success or None,
            "last_run": attrs.asdict(state.last) if state.last.ended else None,
            "lag": self.lag(),
        }
