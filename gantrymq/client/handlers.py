"""Makes handlers of functions that take the body, the message, or both, as their annotations say."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_args, get_origin, get_type_hints

from gantrymq.client.serializers import DeserializerChoice
from gantrymq.client.worker import Handler, is_async
from gantrymq.message import DeliveredRecord, ReceivedMessage


def as_handler(
    function: Callable[..., Any], name: str, deserializer: DeserializerChoice | None
) -> tuple[Handler, DeserializerChoice | None]:
    """``function`` as a handler of messages, by the annotations of its parameters, and what reads their bodies.

    Raises TypeError for a function that cannot be one; ``name`` is its name in the text.
    """
    if not callable(function):
        raise TypeError(f"a handler is a function, not {function!r}"[:200])
    parameters = inspect.signature(function).parameters.values()
    wanted = [
        each for each in parameters
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) and each.default is each.empty
    ]  # fmt: skip
    if not wanted:
        wanted = [each for each in parameters if each.kind is each.VAR_POSITIONAL]
    if not 1 <= len(wanted) <= 2:
        raise TypeError(f"{name} has {len(wanted)} parameters: a handler takes the body, the message, or both")
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and each.default is each.empty:
            raise TypeError(
                f"{name} needs the keyword argument {each.name!r}, which a handler does not get: make it positional"
            )
    kinds, unknown = _annotations(function, name, needed=deserializer is None)
    is_message = [_is_message(kinds.get(each.name)) for each in wanted]
    if is_message == [False, False]:
        first, second = (each.name for each in wanted)
        _check_order(name, first, second, kinds, unknown)
        is_first = first not in kinds and kinds.get(second, Any) is not Any  # the one without annotation
        is_message = [is_first, not is_first]
    if is_message == [False] and deserializer is None and wanted[0].name not in kinds:
        is_message = [True]
    if is_message == [True, True]:
        raise TypeError(f"{name} takes the message twice: annotate one parameter with the type of the body")
    choice = deserializer
    if choice is None:
        known = [kinds.get(each.name) for each in wanted]
        of_value = [_value_of(kind) for kind, each in zip(known, is_message, strict=True) if each]
        of_body = [bytes if kind is None else kind for kind, each in zip(known, is_message, strict=True) if not each]
        kinds_of_body = [kind for kind in (*of_body, *of_value) if kind is not None]
        if len(kinds_of_body) == 2 and kinds_of_body[0] != kinds_of_body[1]:
            raise TypeError(f"{name} has two types of the body, {kinds_of_body[0]!r} and {kinds_of_body[1]!r}")
        choice = kinds_of_body[0] if kinds_of_body else None
        if choice is bytes and not any(of_value):
            choice = None
    return _calling(function, is_message, has_value=choice is not None), choice


def _annotations(
    function: Callable[..., Any], name: str, *, needed: bool
) -> tuple[dict[str, Any], dict[str, NameError]]:
    """The annotations by parameter, and why the others, which have a name that is not defined, cannot be evaluated.

    Raises TypeError for the latter if all are ``needed``.
    """
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return get_type_hints(target), {}
    except NameError as error:
        if needed:
            raise TypeError(
                f"the annotations of {name} cannot be read ({error}): define the type at the top of the module, or give"
                " @app.on(..., deserializer=...)"
            ) from None
    kinds: dict[str, Any] = {}
    unknown: dict[str, NameError] = {}
    scope = getattr(inspect.unwrap(target), "__globals__", {})
    for parameter, given in _unevaluated_annotations(target).items():
        try:
            kinds |= get_type_hints(SimpleNamespace(__annotations__={parameter: given}), scope)
        except NameError as error:
            if _names_message(given):
                kinds[parameter] = ReceivedMessage
            else:
                unknown[parameter] = error
    return kinds, unknown


def _unevaluated_annotations(function: Callable[..., Any]) -> dict[str, Any]:
    if sys.version_info >= (3, 14):  # which evaluates them at the first access
        import annotationlib

        return annotationlib.get_annotations(function, format=annotationlib.Format.FORWARDREF)
    else:
        return function.__annotations__


def _names_message(given: Any) -> bool:
    """Whether an annotation that cannot be evaluated is a message, such as ``ReceivedMessage[Order]``, by its name."""
    text = given if isinstance(given, str) else getattr(given, "__forward_arg__", None)
    if text is None:
        return _is_message(given)  # ReceivedMessage["Order"]
    kind = text.strip("'\" ").partition("[")[0]
    return kind.rpartition(".")[2].strip() in (ReceivedMessage.__name__, DeliveredRecord.__name__)


def _check_order(name: str, first: str, second: str, kinds: dict[str, Any], unknown: dict[str, NameError]) -> None:
    """Raise TypeError if either parameter may be the message, because an annotation cannot be evaluated."""
    is_body = first in kinds or (second not in kinds and second not in unknown)
    if not is_body and (error := unknown.get(first) or unknown.get(second)):
        raise TypeError(
            f"{name} takes the body and the message, but the annotations do not say which is which ({error}):"
            " annotate the message with ReceivedMessage"
        )


def _is_message(kind: Any) -> bool:
    kind = get_origin(kind) or kind
    return isinstance(kind, type) and issubclass(kind, DeliveredRecord)


def _value_of(kind: Any) -> Any:
    """The type of the value of ``ReceivedMessage[Order]``; None without one."""
    arguments = get_args(kind)
    return None if not arguments or arguments[0] is Any else arguments[0]


def _calling(function: Callable[..., Any], is_message: list[bool], *, has_value: bool) -> Handler:
    if is_message == [True]:
        return function

    def arguments(message: ReceivedMessage) -> list[Any]:
        body = message.value if has_value else message.body
        return [message if each else body for each in is_message]

    async def handle(message: ReceivedMessage) -> None:
        await function(*arguments(message))

    def handle_in_thread(message: ReceivedMessage) -> Any:
        return function(*arguments(message))

    return handle if is_async(function) else handle_in_thread
