"""The requests of the API, under ``/api/v1``, and the files of the pages.

Each request of the table :data:`ROUTES` is one function of a client and a request; ``openapi.json`` is made of the same
table.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from mimetypes import guess_type
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import attrs
import structlog
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gantrymq._version import __version__
from gantrymq.client.errors import BrokerError, GantryError, NoRoute
from gantrymq.client.groups import plan_reset, reset_offsets
from gantrymq.dashboard import views
from gantrymq.dashboard.access import COOKIE, Access, ApiResponse, Guard, refuse
from gantrymq.dashboard.schemas import ERROR, FLAG, RESPONSES, ROLE, SESSION, TEXT, WHOLE, Schema, fields, optional
from gantrymq.message import Message
from gantrymq.operations import dead_letters, groups
from gantrymq.operations.brokers import brokers_without_master, runtime_info
from gantrymq.operations.clients import disconnect
from gantrymq.operations.delayed import NotRecalled, recall_message
from gantrymq.operations.transactions import resume_transaction
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.recent_events import RANKS, recent_events

if TYPE_CHECKING:
    from starlette.types import Send

    from gantrymq.client import Client

log = structlog.get_logger("gantrymq.dashboard")

PREFIX: Final = "/api/v1"
STATIC: Final = Path(__file__).parent / "static"
FILES: Final = {"/": "index.html"} | {f"/{name}": name for name in ("app.js", "charts.js", "style.css", "theme.js")}
BODY_MAX_BYTES: Final = 1024 * 1024
TIMEOUT_S: Final = 30.0
"""How long the cluster may take for one request of the API."""
SAMPLE_S: Final = 2.0
SAMPLES_KEPT: Final = 150
STREAMS_MAX: Final = 16
MISSING_S: Final = 3600.0
"""How long a broker that has gone is shown."""
LOGIN_PAUSE_S: Final = 1.0
"""How long the answer to an unknown token takes."""
RECALL_GROUP: Final = "GANTRYMQ_DASHBOARD"
REPLAY_MAX: Final = 10_000
"""The most dead letters that one request sends again."""
REPLAY_S: Final = 20.0
"""How long one request sends dead letters again: one that :data:`TIMEOUT_S` interrupted might be sent twice."""
BODY_S: Final = 10.0
"""How long the body of a request may take to arrive."""


class BadRequest(Exception):
    """The request cannot be carried out as it is."""


class Running(Exception):
    """The same is being done already."""


class SlowBody(Exception):
    """The body of a request did not arrive in time."""


class Source:
    """The client of the cluster, while there is one, and the latest samples of its counters."""

    def __init__(self) -> None:
        self.client: Client | None = None
        self.problem = "the dashboard has just started"
        self.samples: deque[dict[str, Any]] = deque(maxlen=SAMPLES_KEPT)
        self.sampled = anyio.Event()
        self.streams = 0
        self.replaying: set[str] = set()
        """Groups whose dead letters are being replayed."""
        self.reading_delayed = anyio.Lock()
        self.delayed: tuple[float, str | None, Any] = (-math.inf, None, None)
        """When the last reading of the timed messages began, for which topic, and what it has found."""
        self._seen: dict[tuple[str, int], tuple[float, dict[str, Any]]] = {}
        self._lags = views.GroupLags()

    async def sample(self) -> None:
        """Look at the cluster every :data:`SAMPLE_S` seconds, until cancelled."""
        while True:
            sample: dict[str, Any] = {"time": int(time.time() * 1000)}
            try:
                with anyio.fail_after(TIMEOUT_S):
                    sample |= await self.overview()
            except (GantryError, TimeoutError, OSError) as error:
                sample["problem"] = str(error) or "the cluster does not answer"
            except Exception as error:  # the pages need the next samples, and in a broker's process the broker goes on
                sample["problem"] = f"{type(error).__name__}: see the log"
                if not self.samples or self.samples[-1].get("problem") != sample["problem"]:
                    log.exception("dashboard_sample_failed")
            self.samples.append(sample)
            self.sampled.set()
            self.sampled = anyio.Event()
            await anyio.sleep(SAMPLE_S)

    async def overview(self) -> dict[str, Any]:
        """:func:`views.overview`, and the brokers that no nameserver knows any more: also those that only a request
        between two samples has shown."""
        found = await views.overview(self.ready(), self._lags)
        found["brokers"] = self._with_missing(found["brokers"])
        return found

    def _with_missing(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """``rows``, and those of brokers that no nameserver knows any more, for :data:`MISSING_S`."""
        now = time.monotonic()
        for row in rows:
            self._seen[row["broker"], row["id"]] = (now, row)
        found = list(rows)
        for key, (seen, row) in list(self._seen.items()):
            if now - seen > MISSING_S:
                del self._seen[key]
            elif seen != now:
                found.append({**row, "role": "missing"})
        return found

    def ready(self) -> Client:
        """The client; :class:`GantryError` while no nameserver can be reached."""
        if self.client is None:
            raise GantryError(self.problem)
        return self.client


Handler = Callable[["Client", Request, dict[str, Any]], Awaitable[Any]]


@attrs.frozen
class Operation:
    """One request of the API: ``query`` and ``body`` have the schemas of its parameters, ``required`` those that it
    must have; :data:`~gantrymq.dashboard.schemas.RESPONSES` has the schema of its response."""

    method: str
    path: str
    text: str
    handler: Handler
    query: dict[str, Schema] = attrs.field(factory=dict)
    body: dict[str, Schema] = attrs.field(factory=dict)
    required: tuple[str, ...] = ()
    needs_cluster: bool = attrs.field(default=True, kw_only=True)


def _page(request: Request) -> views.Page:
    return views.Page(
        request.query_params.get("search", ""),
        _int(request.query_params, "page", 1),
        _int(request.query_params, "size", 50),
    )


def _int(values: Any, name: str, default: int, least: int = 0) -> int:
    given = values.get(name, default)
    try:
        number = int(given)
    except (TypeError, ValueError, OverflowError):  # the last one for 1e400, which is infinite
        raise BadRequest(f"{name} must be a whole number, not {given!r}") from None
    if not least <= number < 1 << 62:
        raise BadRequest(f"{name} must be at least {least}, not {number}")
    return number


def _flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "").lower() in FLAGS


def _text(values: dict[str, Any], name: str, default: str | None = None) -> str:
    given = values.get(name, default)
    if not isinstance(given, str) or (default is None and not given):
        raise BadRequest(f"{name} must be a text")
    return given


def _confirmed(body: dict[str, Any], name: str) -> None:
    if body.get("confirm") != name:
        raise BadRequest(f"confirm must be {name!r}: this cannot be undone")


async def _overview(client: Client, request: Request, body: dict[str, Any]) -> Any:
    source: Source = request.app.state.source
    return await source.overview()


async def _brokers(client: Client, request: Request, body: dict[str, Any]) -> Any:
    return {"brokers": await views.brokers(client)}


async def _runtime(client: Client, request: Request, body: dict[str, Any]) -> Any:
    known = [row["address"] for row in await views.brokers(client)]
    if request.path_params["address"] not in known:
        raise NoRoute(f"no nameserver knows a broker at {request.path_params['address']}")
    return {"runtime": await runtime_info(client, request.path_params["address"])}


async def _plugins(client: Client, request: Request, body: dict[str, Any]) -> Any:
    return {"plugins": await views.plugins(client)}


async def _topics(client: Client, request: Request, body: dict[str, Any]) -> Any:
    return await views.topics(client, _page(request), system=_flag(request, "system"))


async def _topic(client: Client, request: Request, body: dict[str, Any]) -> Any:
    return await views.topic(client, request.path_params["topic"])


async def _create_topic(client: Client, request: Request, body: dict[str, Any]) -> Any:
    name, queues = _text(body, "topic"), _int(body, "queues", 8, 1)
    if queues > 1024:
        raise BadRequest("queues must be at most 1024")
    if name in await client.admin.topics():
        raise BadRequest(f"topic {name} exists; `gantrymq topic create --update` changes it")
    return {"topic": name, "brokers": await client.admin.create_topic(name, queues)}


async def _delete_topic(client: Client, request: Request, body: dict[str, Any]) -> Any:
    name = request.path_params["topic"]
    _confirmed(body, name)
    await client.admin.delete_topic(name)
    return {"topic": name}


async def _messages(client: Client, request: Request, body: dict[str, Any]) -> Any:
    name, query = request.path_params["topic"], request.query_params
    if query.get("key") or query.get("id"):
        found = await views.find(client, name, key=query.get("key", ""), message_id=query.get("id", ""))
    elif "offset" in query:
        found = await views.at_offset(client, name, _int(query, "queue", 0), _int(query, "offset", 0))
    else:
        start = query.get("from", "last")
        if start not in ("first", "last"):
            start = str(_int(query, "from", 0))
        found = await views.peek(client, name, start, _int(query, "max", 32, 1))
    return {"messages": found}


async def _send(client: Client, request: Request, body: dict[str, Any]) -> Any:
    name = request.path_params["topic"]
    await client.admin.route(name)  # a topic is not created by a typing error
    keys = _text(body, "keys", "").split()
    message = Message(name, _text(body, "body", "").encode(), _text(body, "tags", "") or None, keys)
    async with client.producer("GANTRYMQ_DASHBOARD") as producer:
        result = await producer.send(message)
    place = result.queue
    return {
        "id": result.message_id, "status": result.status.name, "broker": place.broker_name, "queue": place.queue_id,
        "offset": result.queue_offset,
    }  # fmt: skip


async def _groups(client: Client, request: Request, body: dict[str, Any]) -> Any:
    return await views.group_page(client, _page(request), system=_flag(request, "system"))


async def _group(client: Client, request: Request, body: dict[str, Any]) -> Any:
    return await views.group(client, request.path_params["group"])


async def _reset(client: Client, request: Request, body: dict[str, Any]) -> Any:
    name, to = request.path_params["group"], body.get("to")
    if to is None:
        raise BadRequest("to is missing: first, last, or ms since 1970")
    if to not in ("first", "last"):
        to = _int(body, "to", 0)
    topic = _text(body, "topic", "")
    plan = await plan_reset(client.admin, name, [topic] if topic else [], to)
    unread = [] if topic else await brokers_without_master(client)
    changed = not body.get("dry_run")
    if changed:
        _confirmed(body, name)
        plan = await reset_offsets(client.admin, name, plan, to)
    return {"group": name, "changed": changed, "queues": [groups.flat(each) for each in plan], "unread": unread}


async def _delete_group(client: Client, request: Request, body: dict[str, Any]) -> Any:
    name = request.path_params["group"]
    _confirmed(body, name)
    if await groups.group_members(client, name):
        raise BadRequest(f"group {name} has members: stop them first")
    await groups.delete_group(client, name)
    return {"group": name}


async def _clients(client: Client, request: Request, body: dict[str, Any]) -> Any:
    return await views.clients(client, _page(request))


async def _producers(client: Client, request: Request, body: dict[str, Any]) -> Any:
    return await views.producers(client, _page(request))


async def _disconnect(client: Client, request: Request, body: dict[str, Any]) -> Any:
    name = request.path_params["client"]
    _confirmed(body, name)
    rows = await disconnect(client, name)
    return {"client": name, "closed": sum(row.closed for row in rows), "brokers": [attrs.asdict(row) for row in rows]}


async def _trace(client: Client, request: Request, body: dict[str, Any]) -> Any:
    return await views.trace(client, request.path_params["id"])


async def _why(client: Client, request: Request, body: dict[str, Any]) -> Any:
    name = request.query_params.get("group", "")
    if not name:
        raise BadRequest("group is missing: the consumer group that did not get the message")
    return {"reasons": await views.why(client, request.path_params["topic"], request.path_params["id"], name)}


async def _transactions(client: Client, request: Request, body: dict[str, Any]) -> Any:
    return await views.transactions(client, _int(request.query_params, "max", 32, 1))


async def _resume(client: Client, request: Request, body: dict[str, Any]) -> Any:
    await resume_transaction(client, request.path_params["id"])
    return {"id": request.path_params["id"]}


async def _recall(client: Client, request: Request, body: dict[str, Any]) -> Any:
    topic = _text(body, "topic")
    _confirmed(body, topic)
    return {"id": await recall_message(client, topic, _text(body, "handle"), RECALL_GROUP)}


async def _log_events(client: Client, request: Request, body: dict[str, Any]) -> Any:
    level = request.query_params.get("level", "info")
    if level not in RANKS:
        raise BadRequest(f"level must be one of {', '.join(RANKS)}, not {level!r}")
    return {"events": recent_events(level, request.query_params.get("search", ""))}


async def _dead_letters(client: Client, request: Request, body: dict[str, Any]) -> Any:
    return {"groups": await views.dead_letter_rows(client)}


async def _dead_letter_messages(client: Client, request: Request, body: dict[str, Any]) -> Any:
    most = _int(request.query_params, "max", 32, 1)
    return {"messages": await views.dead_letter_messages(client, request.path_params["group"], most)}


async def _replay(client: Client, request: Request, body: dict[str, Any]) -> Any:
    name = request.path_params["group"]
    _confirmed(body, name)
    most = min(_int(body, "max", REPLAY_MAX, 1), REPLAY_MAX)
    replaying: set[str] = request.app.state.source.replaying
    if name in replaying:  # two at the same time would send each dead letter twice
        raise Running(f"the dead letters of group {name} are being replayed already; try again later")
    replaying.add(name)
    try:
        until = anyio.current_time() + REPLAY_S
        return {"group": name, "sent": await dead_letters.replay(client, name, limit=most, until=until)}
    finally:
        replaying.remove(name)


async def _delayed(client: Client, request: Request, body: dict[str, Any]) -> Any:
    source: Source = request.app.state.source
    topic, asked = request.query_params.get("topic") or None, anyio.current_time()
    async with source.reading_delayed:  # each reading takes time and memory
        began, of, found = source.delayed
        if of != topic or began < asked:
            began = anyio.current_time()
            found = await views.delayed(client, topic)
            source.delayed = (began, topic, found)
    return found


def _text_of(meaning: str, **more: Any) -> Schema:
    return {**TEXT, "description": meaning, **more}


def _number(meaning: str, least: int = 0, **more: Any) -> Schema:
    return {**WHOLE, "minimum": least, "description": meaning, **more}


FLAGS: Final = ("1", "true", "yes")
PAGE: Final[dict[str, Schema]] = {
    "search": _text_of("part of the name"),
    "page": _number("number of the page, from 1", default=1),
    "size": _number("rows of a page, at most 200", default=50),
}
SYSTEM: Final[dict[str, Schema]] = {"system": {"enum": [*FLAGS, ""], "description": "1: also the system's own"}}
MOST: Final = _number("messages, at most 64", 1, default=32)
CONFIRM: Final[dict[str, Schema]] = {"confirm": _text_of("the same name again")}
WHEN: Final[list[Schema]] = [{"enum": ["first", "last"]}, WHOLE]
OPERATIONS: Final = (
    Operation("GET", "/overview", "Brokers, totals, and the groups that lag most", _overview),
    Operation("GET", "/brokers", "All brokers with role, version and counters", _brokers),
    Operation("GET", "/brokers/{address}", "The runtime information of one broker", _runtime),
    Operation("GET", "/plugins", "The plugins of each broker with their cost", _plugins),
    Operation("GET", "/topics", "Topics with queues and messages", _topics, {**PAGE, **SYSTEM}),
    Operation(
        "POST", "/topics", "Create a topic", _create_topic, {},
        {"topic": _text_of("name"), "queues": _number("on each broker", 1, maximum=1024, default=8)}, ("topic",),
    ),
    Operation("GET", "/topics/{topic}", "Queues and groups of a topic", _topic),
    Operation(
        "DELETE", "/topics/{topic}", "Delete a topic with its messages", _delete_topic, {}, CONFIRM, ("confirm",)
    ),
    Operation(
        "GET", "/topics/{topic}/messages", "Messages by key, id, queue and offset, or time", _messages,
        {
            "key": _text_of("a key"), "id": _text_of("a message id"), "queue": _number("queue id", default=0),
            "offset": _number("queue offset"), "max": MOST,
            "from": {"anyOf": WHEN, "description": "first, last, or ms since 1970", "default": "last"},
        },
    ),
    Operation(
        "POST", "/topics/{topic}/messages", "Send a message", _send, {},
        {"body": _text_of("text"), "tags": _text_of("one tag"), "keys": _text_of("keys, separated by spaces")},
    ),
    Operation("GET", "/groups", "Consumer groups with members and lag", _groups, {**PAGE, **SYSTEM}),
    Operation("GET", "/groups/{group}", "Queues with lag, and members", _group),
    Operation(
        "DELETE", "/groups/{group}", "Delete a group without members", _delete_group, {}, CONFIRM, ("confirm",)
    ),
    Operation(
        "POST", "/groups/{group}/reset", "Set the offsets of a group", _reset, {},
        {
            "to": {"anyOf": WHEN, "description": "first, last, or ms since 1970"},
            "topic": _text_of("default: all"),
            "dry_run": {**FLAG, "description": "change nothing; needs no confirm", "default": False},
            **CONFIRM,
        },
        ("to",),
    ),
    Operation("GET", "/clients", "Connected members of the groups", _clients, PAGE),
    Operation("GET", "/producers", "Connected producers", _producers, PAGE),
    Operation(
        "POST", "/clients/{client}/disconnect", "Close the connections of a client on all brokers of GantryMQ",
        _disconnect, {}, CONFIRM, ("confirm",),
    ),
    Operation("GET", "/messages/{id}/trace", "Who sent and who consumed a message, as clients recorded", _trace),
    Operation(
        "GET", "/topics/{topic}/messages/{id}/why", "Why a group did not get a message", _why,
        {"group": _text_of("the consumer group")}, {}, ("group",),
    ),
    Operation(
        "GET", "/transactions", "Open transactions, and discarded half messages", _transactions, {"max": MOST}
    ),
    Operation("POST", "/transactions/{id}/resume", "Resume the check-backs of a discarded half message", _resume),
    Operation("GET", "/dead-letters", "Dead letters of each group", _dead_letters),
    Operation("GET", "/dead-letters/{group}", "The oldest dead letters", _dead_letter_messages, {"max": MOST}),
    Operation(
        "POST", "/dead-letters/{group}/replay", "Send dead letters to their group again", _replay, {},
        {"max": _number(f"messages, at most {REPLAY_MAX}", 1, default=REPLAY_MAX), **CONFIRM}, ("confirm",),
    ),
    Operation("GET", "/delayed", "Timed messages that wait", _delayed, {"topic": _text_of("only those for it")}),
    Operation(
        "POST", "/delayed/recall", "Recall a timed message", _recall, {},
        {"topic": _text_of("its topic"), "handle": _text_of("its recall handle"), **CONFIRM},
        ("topic", "handle", "confirm"),
    ),
    Operation(
        "GET", "/log-events", "The newest log events of the process that serves the dashboard", _log_events,
        {
            "level": {"enum": list(RANKS), "description": "the lowest level", "default": "info"},
            "search": _text_of("part of the event"),
        },
        needs_cluster=False,
    ),
)  # fmt: skip


def make_app(source: Source, access: Access) -> Starlette:
    """The ASGI application. ``source.client`` and ``source.sample`` are the caller's to provide and to run."""

    def endpoint(operation: Operation) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return await _answer(operation, source, request)

        return answer

    async def stream(request: Request) -> Response:
        if source.streams >= STREAMS_MAX:
            return refuse(503, "streams", f"{STREAMS_MAX} pages are being kept up to date already; try again later")
        return EventStream(_events(source), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def session(request: Request) -> Response:
        return await _session(access, request)

    async def openapi(request: Request) -> Response:
        return JSONResponse(openapi_document())

    files = {path: (STATIC / name).read_bytes() for path, name in FILES.items()}

    async def file(request: Request) -> Response:
        path: str = request.scope["path"]
        # FileResponse would cancel its own sending, and with it the end or the reuse of the connection.
        return Response(files[path], media_type=guess_type(FILES[path])[0], headers={"Cache-Control": "no-cache"})

    routes = [Route(PREFIX + each.path, endpoint(each), methods=[each.method]) for each in OPERATIONS]
    routes += [
        Route(f"{PREFIX}/stream", stream), Route(f"{PREFIX}/openapi.json", openapi),
        Route(f"{PREFIX}/session", session, methods=["GET", "POST", "DELETE"]),
        *(Route(path, file) for path in FILES),
    ]  # fmt: skip
    app = Starlette(routes=routes, middleware=[Middleware(Guard, access=access)])
    app.state.source = source
    return app


async def _answer(operation: Operation, source: Source, request: Request) -> Response:
    """The answer to a request. An action that fails is logged too, because it may have changed something before."""
    body: dict[str, Any] = {}
    response = await _answered(operation, source, request, body)
    was_tried = response.status_code not in (400, 408)
    if operation.method != "GET" and was_tried and not body.get("dry_run"):
        log.info(
            "dashboard_action",
            method=operation.method,
            path=request.scope["path"],
            peer=request.client and request.client.host,
            status=response.status_code,
        )
    return response


async def _answered(operation: Operation, source: Source, request: Request, body: dict[str, Any]) -> Response:
    """As :func:`_answer`, without the log; ``body`` gets what the request's body says."""
    try:
        if operation.method != "GET":
            body.update(await _read_body(request))
        with anyio.fail_after(TIMEOUT_S):
            client = source.ready() if operation.needs_cluster else None
            found = await operation.handler(client, request, body)  # type: ignore[arg-type]
        return ApiResponse(found)
    except (BadRequest, ValueError, NotRecalled) as error:
        return refuse(400, "bad_request", str(error))
    except SlowBody as error:
        return refuse(408, "body", str(error))
    except NoRoute as error:
        return refuse(404, "not_found", str(error))
    except (BrokerError, RemoteFault) as error:
        return refuse(409, "broker", str(error))
    except Running as error:
        return refuse(409, "running", str(error))
    except TimeoutError as error:  # an OSError too
        return refuse(504, "timeout", str(error) or f"the cluster did not answer in {TIMEOUT_S:g} s")
    except (GantryError, OSError) as error:
        return refuse(502, "cluster", str(error))
    except Exception as error:
        log.exception("dashboard_request_failed", path=request.scope["path"])
        return refuse(500, "internal", f"{type(error).__name__}: see the log")


async def _read_body(request: Request) -> dict[str, Any]:
    data = b""
    try:
        with anyio.fail_after(BODY_S):  # a request without its body takes one of REQUESTS_AT_ONCE
            async with aclosing(request.stream()) as pieces:
                async for piece in pieces:
                    data += piece
                    if len(data) > BODY_MAX_BYTES:
                        raise BadRequest(f"the body has more than {BODY_MAX_BYTES} bytes")
    except TimeoutError:
        raise SlowBody(f"the body did not arrive in {BODY_S:g} s") from None
    except ClientDisconnect:
        raise BadRequest("the connection ended before the body") from None
    try:
        body = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        raise BadRequest("the body must be a JSON object") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


async def _session(access: Access, request: Request) -> Response:
    if request.method == "POST":
        try:
            began = access.begin_session(_text(await _read_body(request), "token"))
        except BadRequest as error:
            return refuse(400, "bad_request", str(error))
        except SlowBody as error:
            return refuse(408, "body", str(error))
        if began is None:
            await anyio.sleep(LOGIN_PAUSE_S)
            return refuse(401, "token", "the token is not known")
        response = JSONResponse({"role": began[1]})
        secure = request.scope["scheme"] == "https"
        response.set_cookie(COOKIE, began[0], httponly=True, samesite="strict", secure=secure)
        return response
    if request.method == "DELETE":
        access.end_session(request)
        return JSONResponse({"role": None})
    return JSONResponse({"role": access.role_of(request), "tokens": bool(access.tokens), "version": __version__})


class EventStream(StreamingResponse):
    """Server-sent events, whose generator ends with the response: where a reader leaves while an event is sent to it,
    Starlette would leave the generator to the garbage collector, and the page would count as open until then."""

    def __init__(self, events: AsyncGenerator[str], **options: Any) -> None:
        super().__init__(events, **options)
        self._events = events

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._events):
            await super().stream_response(send)


async def _events(source: Source) -> AsyncGenerator[str]:
    """Server-sent events: all kept samples, then each new one."""
    source.streams += 1
    try:
        yield f"event: history\ndata: {json.dumps(list(source.samples))}\n\n"
        while True:
            await source.sampled.wait()
            yield f"event: sample\ndata: {json.dumps(source.samples[-1])}\n\n"
    finally:
        source.streams -= 1


def openapi_document() -> dict[str, Any]:
    """The API as OpenAPI 3.1."""
    paths: dict[str, Any] = {}
    for each in OPERATIONS:
        names = [part[1:-1] for part in each.path.split("/") if part.startswith("{")]
        parameters = [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in names]
        for name, schema in each.query.items():
            shown = {key: value for key, value in schema.items() if key != "description"}
            parameters.append(
                {
                    "name": name,
                    "in": "query",
                    "required": name in each.required,
                    "description": schema["description"],
                    "schema": shown,
                }
            )
        described = _described(each.text, RESPONSES[each.method, each.path])
        described["parameters"] = parameters
        if each.method != "GET":
            body: Schema = {"type": "object", "properties": each.body, "required": list(each.required)}
            described["requestBody"] = {"content": {"application/json": {"schema": body}}}
        paths.setdefault(PREFIX + each.path, {})[each.method.lower()] = described
    token = {"content": {"application/json": {"schema": fields(token=TEXT)}}}
    paths[f"{PREFIX}/session"] = {
        "get": _described("The role of whoever asks, and whether the dashboard has tokens", SESSION),
        "post": _described("Begin a session with a token; its cookie is the answer's", fields(role=ROLE))
        | {"requestBody": token},
        "delete": _described("End the session", fields(role=optional(ROLE))),
    }
    stream = _described("The samples of the cluster, as server-sent events: history, then sample", {})
    stream["responses"]["200"]["content"] = {"text/event-stream": {"schema": TEXT}}
    paths[f"{PREFIX}/stream"] = {"get": stream}
    return {
        "openapi": "3.1.0",
        "info": {"title": "GantryMQ", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR}, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}
        },
        "security": [{"token": []}, {}],
    }  # fmt: skip


def _described(text: str, answer: Schema) -> dict[str, Any]:
    error = {"schema": {"$ref": "#/components/schemas/Error"}}
    responses = {
        "200": {"description": "done", "content": {"application/json": {"schema": answer}}},
        "default": {"description": "an error", "content": {"application/json": error}},
    }
    return {"summary": text, "responses": responses}
