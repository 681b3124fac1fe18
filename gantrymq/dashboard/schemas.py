"""JSON schemas of the API: what a request may have, and what each answer has.

Rows that are attrs classes get their schema from the class. An answer has all of its fields and no others.
"""

from __future__ import annotations

import types
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import attrs

from gantrymq.client.groups import OffsetReset, QueueLag
from gantrymq.operations import clients, dead_letters, delayed, groups, traces, transactions, why

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
WHOLE: Final[Schema] = {"type": "integer"}
FRACTION: Final[Schema] = {"type": "number"}
FLAG: Final[Schema] = {"type": "boolean"}


def listed(each: Schema) -> Schema:
    """A list of such values."""
    return {"type": "array", "items": each}


def optional(schema: Schema) -> Schema:
    """The same, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def mapped(each: Schema) -> Schema:
    """An object whose names are data."""
    return {"type": "object", "additionalProperties": each}


def fields(**properties: Schema) -> Schema:
    """An object with these fields and no others."""
    return {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False
    }  # fmt: skip


def row_of(kind: type[Any], *, without: tuple[str, ...] = (), **more: Schema) -> Schema:
    """The schema of an attrs class as JSON, with ``more`` fields."""
    hints = get_type_hints(kind)
    names = [each.name for each in attrs.fields(kind) if each.name not in without]
    return fields(**{name: _of_hint(hints[name]) for name in names}, **more)


def _of_hint(hint: Any) -> Schema:
    simple = {str: TEXT, int: WHOLE, float: FRACTION, bool: FLAG}
    if hint in simple:
        return simple[hint]
    arguments = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        (inner,) = [each for each in arguments if each is not type(None)]
        return optional(_of_hint(inner))
    if get_origin(hint) is list:
        return listed(_of_hint(arguments[0]))
    if get_origin(hint) is dict:
        return mapped(_of_hint(arguments[1]))
    if attrs.has(hint):
        return row_of(hint)
    raise TypeError(f"no schema for {hint!r}")


PLACE: Final = {"total": WHOLE, "page": WHOLE, "pages": WHOLE, "size": WHOLE}
"""The fields of a page of a list."""

PLACE_OF_QUEUE: Final = {"topic": TEXT, "broker": TEXT, "queue": WHOLE}
"""The fields of a queue that a row is about."""

BROKER: Final = fields(
    cluster=TEXT, broker=TEXT, id=WHOLE, role=TEXT, address=TEXT, offset=optional(WHOLE),
    lag_seconds=optional(FRACTION), version=TEXT, started=optional(WHOLE), stored_total=optional(WHOLE),
    delivered_total=optional(WHOLE), disk_ratio=optional(FRACTION), open_transactions=optional(WHOLE), not_ready=TEXT,
)  # fmt: skip
GROUP: Final = row_of(groups.Overview)
QUEUE: Final = fields(broker=TEXT, queue=WHOLE, min=WHOLE, max=WHOLE, messages=WHOLE, last_stored=WHOLE)
MESSAGE: Final = fields(
    topic=TEXT, broker=TEXT, queue=WHOLE, offset=WHOLE, id=TEXT, offset_id=TEXT, tags=optional(TEXT),
    keys=listed(TEXT), born=WHOLE, stored=WHOLE, attempts=WHOLE, properties=mapped(TEXT), body_bytes=WHOLE,
    body_text=optional(TEXT), body_base64=TEXT,
)  # fmt: skip
MESSAGES: Final = fields(messages=listed(MESSAGE))
PLUGIN: Final = fields(
    broker=TEXT, plugin=TEXT, version=TEXT, tasks=mapped(TEXT), calls=WHOLE, seconds=FRACTION, errors=WHOLE
)
TOPIC: Final = fields(topic=TEXT, queues=WHOLE, messages=WHOLE, last_stored=WHOLE)
LEVEL: Final = fields(broker=TEXT, level=WHOLE, delay=TEXT, waiting=WHOLE)
EVENT: Final = fields(time=WHOLE, level=TEXT, event=TEXT, component=TEXT, fields={"type": "object"})
ROLE: Final = {"enum": ["viewer", "admin"]}
SESSION: Final = fields(role=optional(ROLE), tokens=FLAG, version=TEXT)
ERROR: Final = fields(error=fields(code=TEXT, message=TEXT))

RESPONSES: Final[dict[tuple[str, str], Schema]] = {
    ("GET", "/overview"): fields(
        brokers=listed(BROKER), nameservers=listed(TEXT), topics=WHOLE, groups=optional(WHOLE),
        dead_letter_topics=WHOLE, lag=optional(WHOLE), stored_total=WHOLE, delivered_total=WHOLE, slowest=listed(GROUP),
    ),
    ("GET", "/brokers"): fields(brokers=listed(BROKER)),
    ("GET", "/brokers/{address}"): fields(runtime=mapped(TEXT)),
    ("GET", "/plugins"): fields(plugins=listed(PLUGIN)),
    ("GET", "/topics"): fields(topics=listed(TOPIC), **PLACE),
    ("POST", "/topics"): fields(topic=TEXT, brokers=listed(TEXT)),
    ("GET", "/topics/{topic}"): fields(topic=TEXT, queues=listed(QUEUE), groups=listed(TEXT), messages=WHOLE),
    ("DELETE", "/topics/{topic}"): fields(topic=TEXT),
    ("GET", "/topics/{topic}/messages"): MESSAGES,
    ("POST", "/topics/{topic}/messages"): fields(id=TEXT, status=TEXT, broker=TEXT, queue=WHOLE, offset=WHOLE),
    ("GET", "/groups"): fields(groups=listed(GROUP), **PLACE),
    ("GET", "/groups/{group}"): fields(
        group=TEXT, lag=WHOLE, queues=listed(row_of(QueueLag, without=("queue",), lag=WHOLE, **PLACE_OF_QUEUE)),
        members=listed(row_of(groups.Member)), subscriptions_differ=FLAG,
    ),
    ("DELETE", "/groups/{group}"): fields(group=TEXT),
    ("POST", "/groups/{group}/reset"): fields(
        group=TEXT, changed=FLAG, queues=listed(row_of(OffsetReset, without=("queue",), **PLACE_OF_QUEUE)),
        unread=listed(TEXT),
    ),
    ("GET", "/clients"): fields(
        clients=listed(row_of(groups.Member, without=("subscriptions",), group=TEXT)), **PLACE
    ),
    ("GET", "/producers"): fields(
        producers=listed(row_of(clients.ConnectedClient, without=("version",), version=TEXT)), **PLACE
    ),
    ("POST", "/clients/{client}/disconnect"): fields(
        client=TEXT, closed=WHOLE, brokers=listed(row_of(clients.Disconnected))
    ),
    ("GET", "/messages/{id}/trace"): row_of(traces.MessageTraces),
    ("GET", "/topics/{topic}/messages/{id}/why"): fields(reasons=listed(row_of(why.Reason))),
    ("GET", "/transactions"): fields(
        brokers=listed(row_of(transactions.OpenTransactions)), discarded=listed(MESSAGE)
    ),
    ("POST", "/transactions/{id}/resume"): fields(id=TEXT),
    ("GET", "/dead-letters"): fields(groups=listed(row_of(dead_letters.DeadLetters))),
    ("GET", "/dead-letters/{group}"): MESSAGES,
    ("POST", "/dead-letters/{group}/replay"): fields(group=TEXT, sent=WHOLE),
    ("GET", "/delayed"): fields(
        total=WHOLE, complete=FLAG, unread=listed(TEXT), messages=listed(row_of(delayed.Waiting)), levels=listed(LEVEL)
    ),
    ("POST", "/delayed/recall"): fields(id=TEXT),
    ("GET", "/log-events"): fields(events=listed(EVENT)),
}  # fmt: skip
"""The schema of each answer, by method and path."""
