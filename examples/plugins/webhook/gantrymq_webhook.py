"""Posts the messages of some topics to an HTTP address, in the order of the log, each at least once.

Slot: none. Hooks: config_section, configure, recovered, register_tasks, dispatch, persist, collect_metrics.
Config ``[plugin.webhook]``: ``url``; ``topics``, names, or the beginnings of names with a ``*`` behind: ``%DLQ%*`` are
the dead letters of all groups; ``timeout`` of one request; ``retry``, the first pause after a failed request (it
doubles up to ``retry_max``). Files: ``config/webhook.json``, the log offset up to which all is posted.

The body of a request is the message's. The headers X-Gantrymq-Topic, X-Gantrymq-Queue-Id, X-Gantrymq-Queue-Offset and
X-Gantrymq-Id tell which message it is; the id is percent-encoded. A compressed body is unpacked. One that cannot be
unpacked is posted as it is stored, with the header ``X-Gantrymq-Undecoded: true``. An answer 200 to 299 acknowledges a
message. Everything else, also a redirect, is tried again until it succeeds, and later messages wait. After a crash the
last messages are posted again. The plugin begins with the first message after it was enabled. A slave does not know
what its master has posted: a promoted one posts again everything that its log has since the plugin's first start there,
so the receiver must drop duplicates by X-Gantrymq-Id. Messages that retention deletes before they are posted, and
damaged ones, are skipped with a warning. Where the log itself cannot be read, the plugin logs an error and tries again
after ``retry_max``.
"""

from __future__ import annotations

import json
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import attrs
import structlog
import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.config.fields import duration
from gantrymq.kernel.errors import CorruptRange, OutOfLog, StartError
from gantrymq.kernel.store.log.record import PREPARED_BIT, BadRecord
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.remoting.properties import find_property
from gantrymq.remoting.records import COMPRESSED, BodyError, decompress

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.batch import DispatchBatch
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.store.log.record import Record

log = structlog.get_logger("gantrymq.webhook")


@attrs.frozen
class WebhookConfig:
    """``[plugin.webhook]``."""

    url: str = ""
    topics: tuple[str, ...] = ()
    timeout: float = duration("10s", minimum="10ms", maximum="5m")
    retry: float = duration("1s", minimum="10ms", maximum="1h")
    retry_max: float = duration("60s", minimum="10ms", maximum="1h")


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_given: Any) -> None:
        """Follow no redirect: most of them turn a POST into a GET without the message."""


_OPENER = build_opener(_NoRedirects)


class WebhookPlugin:
    """One object per broker."""

    name = "webhook"
    version = "1.0.0"

    def __init__(self) -> None:
        self.posted = 0
        self.failed = 0
        self.offset = -1
        """All messages below this log offset are posted."""

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """The section's name and type."""
        return "webhook", WebhookConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Refuse an address that can never work."""
        self._config = section = config.section(WebhookConfig)
        parts = urlsplit(section.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise StartError(f"plugin.webhook.url = {section.url!r}: it must begin with http:// or https:// and a host")
        self._broker = broker
        self._topics = frozenset(topic for topic in section.topics if not topic.endswith("*"))
        self._prefixes = tuple(topic[:-1] for topic in section.topics if topic.endswith("*"))
        self._path = Path(broker.root, "config", "webhook.json")
        self._news = trio.Event()

    @hookimpl
    def recovered(self, broker: Broker) -> None:
        """The own offset of the last run; a crash may have cut the log below it."""
        try:
            saved = int(json.loads(self._path.read_bytes())["offset"])
        except FileNotFoundError:
            saved = broker.log.end
            # At once: what comes before the first `persist` is posted after a crash too.
            broker.env.replace(str(self._path), self._state(saved))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StartError(f"plugin.webhook: {self._path} cannot be read ({error}): mend or delete it") from None
        self.offset = min(saved, broker.log.end)

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """Slaves have the same messages: only masters post them."""
        return [BackgroundTask("webhook", self._run, run_on="masters")]

    @hookimpl
    def dispatch(self, batch: DispatchBatch) -> None:
        """Only to wake the task up: it reads the log itself, at its own pace."""
        if any(map(self._is_posted, set(batch.topics))):
            self._news.set()

    def _is_posted(self, topic: str) -> bool:
        return topic in self._topics or topic.startswith(self._prefixes)

    @hookimpl
    def persist(self, broker: Broker) -> dict[str, bytes]:
        """The own offset."""
        return {str(self._path): self._state(self.offset)}

    def _state(self, offset: int) -> bytes:
        return json.dumps({"offset": offset}).encode()

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """What was posted, and how much waits."""
        metrics.counter("webhook_posted_total", "Messages that the other side has acknowledged", self.posted)
        metrics.counter("webhook_failed_total", "Requests that failed and are tried again", self.failed)
        metrics.gauge("webhook_behind_bytes", "Bytes of the log that are not looked at yet", self._behind())

    def _behind(self) -> int:
        return self._broker.store.dispatched - self.offset

    async def _run(self) -> None:
        while True:
            self._news = trio.Event()
            try:
                await self._post_all(self._broker.store.dispatched)
            except CorruptRange as error:  # where the next record begins is unknown
                pause = self._config.retry_max
                log.error("webhook_log_not_readable", offset=self.offset, reason=str(error), again_in_s=pause)
                await trio.sleep(pause)
            else:
                await self._news.wait()

    async def _post_all(self, end: int) -> None:
        """Post what the log has up to ``end``. ``CorruptRange`` if the log cannot be read there."""
        pace = self._broker.pace()
        if self.offset < self._broker.log.min_offset:
            log.warning("webhook_skipped", start=self.offset, end=self._broker.log.min_offset)
            self.offset = self._broker.log.min_offset
        for batch in self._broker.log.scan(self.offset, end):
            columns = batch.topics, batch.offsets, batch.sizes, batch.sys_flags
            for topic, offset, size, sys_flag in zip(*columns, strict=True):
                if self._is_posted(topic) and not sys_flag & PREPARED_BIT:  # no half messages, no rollbacks
                    await self._post(offset)
                    self.offset = offset + size
            self.offset = batch.end
            await pace.checkpoint()

    async def _post(self, offset: int) -> None:
        try:
            record = self._broker.log.read_record(offset)
        except (OutOfLog, CorruptRange, BadRecord) as error:  # deleted meanwhile, on an unreadable block, or damaged
            log.warning("webhook_message_not_readable", offset=offset, reason=str(error))
            return
        request = self._request(record)
        pause = self._config.retry
        while True:
            try:
                # The thread is left behind when the broker stops; the message is posted again after the start.
                await trio.to_thread.run_sync(self._send, request, abandon_on_cancel=True)
            except (OSError, HTTPException, ValueError) as error:  # HTTPError and time-outs are OSErrors
                self.failed += 1
                log.warning("webhook_failed", topic=record.topic, reason=str(error), again_in_s=pause)
            else:
                self.posted += 1
                return
            await trio.sleep(pause)
            pause = min(2 * pause, self._config.retry_max)

    def _send(self, request: Request) -> None:
        try:
            with _OPENER.open(request, timeout=self._config.timeout):
                pass
        except HTTPError as answer:
            answer.close()
            raise

    def _request(self, record: Record) -> Request:
        # Senders choose the id. Quoted, it is always a valid header; unquoted, some would fail at each attempt.
        headers = {
            "Content-Type": "application/octet-stream",
            "X-Gantrymq-Topic": quote(record.topic, safe="%|"),
            "X-Gantrymq-Queue-Id": str(record.queue_id),
            "X-Gantrymq-Queue-Offset": str(record.queue_offset),
            "X-Gantrymq-Id": quote(find_property(record.properties, b"UNIQ_KEY") or b""),
        }
        body = record.body
        if record.sys_flag & COMPRESSED:
            try:
                body = decompress(body, record.sys_flag)
            except BodyError as error:  # the sender chose the flag and the bytes
                log.warning("webhook_body_not_unpacked", topic=record.topic, offset=record.offset, reason=str(error))
                headers["X-Gantrymq-Undecoded"] = "true"
        return Request(self._config.url, data=body, headers=headers, method="POST")  # noqa: S310 - as above
