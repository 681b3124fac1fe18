"""A record of administrative actions and of refused requests: who, from where, what, with which result.

Slot: none; not in the default set: ``--enable audit``.
Hooks: authorize, collect_metrics, config_section, configure, connections_changed, register_processors,
register_tasks, stopping.
Config ``[plugin.audit]``: ``file``, ``topic``, ``reads``, ``connections``, ``interval``.
Files: ``file``, to which it appends a line of JSON for each event.
Provides: RefusalLog, for connections that plugins refuse before a request (``tls``, ``ha``).
RocketMQ has no counterpart.

``events`` makes an event of a request, ``gantrymq.remoting.audit_recorder`` merges and counts them, and
``audit_file`` writes the file.
``docs/howto/secure.md``.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any, Final

import structlog
import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import STORED, AppendBatch
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.audit.audit_file import AuditFile
from gantrymq.plugins.audit.config import AuditConfig
from gantrymq.plugins.audit.events import CLOSED, IDENTIFIED, connection_event, event_of
from gantrymq.plugins.interfaces import RefusalLog, TopicTable
from gantrymq.remoting.audit_events import Event, refused_connection
from gantrymq.remoting.audit_recorder import Recorder
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.codes import PERM_READ, ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.names import refuse_system_topic
from gantrymq.remoting.properties import KEYS, TAGS, encode_properties
from gantrymq.remoting.rare_warnings import RareWarnings
from gantrymq.remoting.rights import BROKER_RIGHTS, READING_CODES, Right

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.network.connection import ConnectionsBatch
    from gantrymq.kernel.processors import Processor, Request, RequestBatch

log = structlog.get_logger("gantrymq.audit")

TOPIC_QUEUES: Final = 1
"""One queue keeps the events in order."""


class AuditPlugin:
    """One object a broker. It sees what the plugins before it have refused."""

    name = "audit"
    _broker: Broker  # these are set by configure
    _config: AuditConfig
    _recorder: Recorder
    _audit_file: AuditFile | None
    _warnings: RareWarnings

    def __init__(self) -> None:
        self._left: list[Event] = []
        """Events that are in the topic and not in the file yet."""
        self._served: frozenset[int] = frozenset()
        """The request codes that some plugin answers."""

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """``[plugin.audit]``."""
        return "audit", AuditConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Open the file; the broker refuses to start if that fails."""
        self._broker = broker
        self._config = section = config.section(AuditConfig)
        if not section.file and not section.topic:
            raise StartError("plugin 'audit': set plugin.audit.file, plugin.audit.topic or both")
        self._recorder = Recorder(broker.env.monotonic, section.interval)
        self._warnings = RareWarnings(broker.env.monotonic)
        broker.registry.provide(RefusalLog, self)
        self._audit_file = AuditFile(broker.env, section.file) if section.file else None
        if self._audit_file is not None:
            try:
                self._audit_file.open()
            except OSError as error:
                reason = error.strerror or str(error)
                raise StartError(f"plugin.audit.file = {section.file!r}: cannot be opened: {reason}") from None

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        """No processor: from here on the table of topics is there. Clients may not send to the topic of the audit."""
        name = self._config.topic
        if name:
            topics = broker.registry.get(TopicTable)
            topics.reserve(name)
            if not broker.broker_id:
                try:
                    refuse_system_topic(name)
                    topics.ensure(TopicConfig(name, TOPIC_QUEUES, TOPIC_QUEUES, PERM_READ))
                except RemoteFault as fault:
                    raise StartError(f"plugin.audit.topic = {name!r}: {fault.remark}") from None
        return {}

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """The writer, and what reopens the file at SIGUSR1."""
        self._served = frozenset(broker.request_codes)
        tasks = [BackgroundTask("audit", self._write)]
        if self._audit_file is not None and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:  # which ends the process while no task runs
                signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            tasks.append(BackgroundTask("audit.reopen", self._reopen))
        return tasks

    # ---------------------------------------------------------------------------------------------- what is seen

    @hookimpl(trylast=True)
    def authorize(self, batch: RequestBatch) -> None:
        """Record refused rows, and follow the administrative ones to their responses."""
        for row, (code, remark) in batch.refusals.items():
            self._recorder.repeated(self._event("refusal", batch.requests[row], code, remark))
        for row in batch.live:
            if BROKER_RIGHTS.get(batch.requests[row].code, Right.ADMIN) is Right.ADMIN:
                self._follow(batch, row)

    def _follow(self, batch: RequestBatch, row: int) -> None:
        """Codes that are not in the table are those of other plugins, and count as actions.

        Those that nobody serves are merged: anybody can send as many as it likes.
        """
        request = batch.requests[row]
        is_read = request.code in READING_CODES
        if is_read and not self._config.reads:
            return
        event = self._event("read" if is_read else "action", request, 0, None)
        add = self._recorder.add if not is_read and request.code in self._served else self._recorder.repeated
        batch.observe(row, lambda code, remark: add(event.ended(self._broker.env.wall_ms(), code, remark)))

    @hookimpl
    def connections_changed(self, batch: ConnectionsBatch) -> None:
        """Record connections of known peers, if the configuration says so."""
        if not self._config.connections:
            return
        now, broker = self._broker.env.wall_ms(), self._broker.name
        for connection in batch.identified:
            self._recorder.add(connection_event(IDENTIFIED, connection, broker, now))
        for connection in batch.closed:
            if connection.identity is not None:
                self._recorder.add(connection_event(CLOSED, connection, broker, now))

    def connection_refused(self, request: str, address: str, port: str, reason: str) -> None:
        """As :class:`RefusalLog` has it."""
        now, broker = self._broker.env.wall_ms(), self._broker.name
        event = refused_connection(request, broker, address, port, reason, now, ResponseCode.NO_PERMISSION)
        self._recorder.repeated(event)

    def _event(self, kind: str, request: Request, code: int, remark: str | None) -> Event:
        return event_of(kind, request, self._broker.name, self._broker.env.wall_ms(), code, remark)

    # ------------------------------------------------------------------------------------------------- the places

    async def _write(self) -> None:
        try:
            while True:
                await self._recorder.wait()
                events = self._recorder.take()
                self._append(events)
                self._left, events = [], self._left + events
                if events:
                    with trio.CancelScope(shield=True):  # a cancelled call would not write what was taken
                        reason = await trio.to_thread.run_sync(self._write_file, events)
                    self._note_loss(len(events), reason)
        finally:
            events = self._left + self._recorder.take(all_counts=True)
            self._note_loss(len(events), self._write_file(events))
            if self._audit_file is not None:
                self._audit_file.close()

    def _write_file(self, events: list[Event]) -> str | None:
        """Returns why it failed. Called in a worker thread, one call at a time."""
        try:
            if self._audit_file is not None:
                self._audit_file.write(b"".join(event.to_line() for event in events))
        except OSError as error:
            return error.strerror or str(error)
        return None

    async def _reopen(self) -> None:
        assert self._audit_file is not None
        before = signal.getsignal(signal.SIGUSR1)
        with trio.open_signal_receiver(signal.SIGUSR1) as signals:
            async for number in signals:
                if callable(before):  # the command's own, which the receiver has replaced, opens the log file again
                    before(number, None)
                self._audit_file.reopen()
                log.info("audit_file_reopened", path=self._config.file)

    @hookimpl
    def stopping(self, broker: Broker) -> None:
        """The last messages for the topic, while the broker still stores some. The writer has the file, in order."""
        events = self._recorder.take(all_counts=True)
        self._append(events)
        self._left += events

    def _append(self, events: list[Event]) -> None:
        if not self._config.topic or self._broker.broker_id or not events:
            return
        batch = AppendBatch(done=self._appended)
        born = self._broker.env.wall_ms()
        for event in events:
            keys = " ".join(dict.fromkeys(key for key in (event.identity, event.access_key) if key and " " not in key))
            properties = {TAGS: event.kind, **({KEYS: keys} if keys else {})}
            batch.add(
                self._config.topic, 0, event.to_line()[:-1], encode_properties(properties).encode(),
                born_timestamp=born, wait=False,
            )  # fmt: skip
        self._broker.append(batch)

    def _appended(self, batch: AppendBatch) -> None:
        lost = [row for row, status in enumerate(batch.statuses) if status not in STORED]
        if lost:
            self._note_loss(len(lost), str(batch.remarks.get(lost[0]) or f"code {int(batch.statuses[lost[0]])}"))

    def _note_loss(self, count: int, reason: str | None) -> None:
        if reason is None:
            return
        self._recorder.lost += count
        if self._warnings.is_due(reason):
            log.error("audit_events_lost", events=count, reason=reason)

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """Events by identity and result, and those that could not be kept."""
        text = "Administrative actions and refused requests"
        for (kind, identity, result), count in self._recorder.totals.items():
            metrics.counter("gantrymq_audit_events_total", text, count, kind=kind, identity=identity, result=result)
        metrics.counter("gantrymq_audit_lost_events_total", "Events that could not be written", self._recorder.lost)
