"""Call a handler: its annotations say which arguments it gets.

    async def validate(file: FileUploaded, message: Message, publish: Publisher) -> None: ...

`Message` and `Publisher` are passed as they are; the one other parameter gets the decoded body. A coroutine function is
awaited; a plain one runs in a thread, or, for work that needs a processor of its own, in another process.

The return value is ignored, unless it is work that has not been done yet: a coroutine that a decorator returned is
awaited. The code of a generator would never run, so `ConsumerSpec` refuses such a handler.
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
import typing
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextvars import copy_context
from functools import lru_cache
from multiprocessing import get_context
from typing import Any

from redrive.errors import ConfigurationError
from redrive.recovery.fingerprint import safe_str
from redrive.worker.batch import Batch
from redrive.worker.codecs import BodyReader, Codecs
from redrive.worker.consumer_spec import name_of
from redrive.worker.message import Message


class HandlerDied(Exception):
    """The process that handled a message died: because of it, or of another message in the same pool."""


class Handler:
    def __init__(
        self,
        function: Callable[..., Any],
        *,
        codecs: Codecs,
        given: Mapping[type, Any],
        session_types: tuple[type, ...] = (),
        threads: int,
        processes: int = 0,
        for_batches: bool = False,
        reads: bool = True,
    ) -> None:
        """`given`: what parameters of these types get. `session_types`: those that get the session of the message's
        transaction. `threads`: how many calls of a plain function run at once. `reads`: its bodies are decoded from
        messages; False if another function makes them, of any type.
        """
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.name = name_of(function)
        self._given = dict(given)
        self._for_batches = for_batches
        self._wants_batch = False  # the `Batch` itself, rather than a list of bodies
        self._body: tuple[str, Any] | None = None
        self._extras: dict[str, Any] = {}  # parameters that are the same for every message
        self._message: str | None = None
        self._session: str | None = None
        self._session_types = session_types
        self._read_signature()
        self._reader = self._reader_of(codecs, reads)
        self._workers = 0 if self.is_async else processes or threads
        self._executor: Executor | None = None
        self._processes = processes
        if processes and (self._message is not None or self._extras):
            raise ConfigurationError(f"{self.name}: in another process it can have the body only")

    # What it wants ------------------------------------------------------------------------------------

    def _reader_of(self, codecs: Codecs, reads: bool) -> BodyReader | None:
        if self._for_batches and (self._body is None or self._message is not None):
            raise ConfigurationError(f"{self.name}: a batch handler has no one message: ask for Batch[T] instead")
        return codecs.reader(self._body[1]) if self._body is not None and reads else None

    def _read_signature(self) -> None:
        try:
            hints = typing.get_type_hints(self.function)
        except NameError as error:
            raise ConfigurationError(f"{self.name}: its annotations cannot be read: {error}") from None
        for parameter in inspect.signature(self.function).parameters.values():
            self._read_parameter(parameter, hints.get(parameter.name, Any))

    def _read_parameter(self, parameter: inspect.Parameter, wanted: Any) -> None:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigurationError(f"{self.name}: what should *{parameter.name} get? Name its parameters")
        if wanted is Message:
            self._message = parameter.name
        elif wanted in self._session_types:
            self._check_session(wanted, parameter.name)
            self._session = parameter.name
        elif wanted in self._given:
            self._extras[parameter.name] = self._given[wanted]
        elif self._body is None and self._for_batches:
            self._body = parameter.name, self._type_in_batch(wanted)
        elif self._body is None:
            self._body = parameter.name, wanted
        elif parameter.default is parameter.empty:
            raise ConfigurationError(
                f"{self.name}: {self._body[0]} gets the body; what should {parameter.name} get? "
                "In addition there may be Message and Publisher"
            )

    def _check_session(self, wanted: type, name: str) -> None:
        if wanted.__name__.startswith("Async") != self.is_async:
            fits = "AsyncSession" if self.is_async else "Session"
            raise ConfigurationError(
                f"{self.name}: {name} is a {wanted.__name__}; this kind of function wants a {fits}"
            )

    @property
    def wants_session(self) -> bool:
        return self._session is not None

    def _type_in_batch(self, wanted: Any) -> Any:
        origin, arguments = typing.get_origin(wanted) or wanted, typing.get_args(wanted)
        if origin not in (list, Batch):
            raise ConfigurationError(f"{self.name}: a batch handler's parameter is annotated as list[T] or Batch[T]")
        self._wants_batch = origin is Batch
        return arguments[0] if arguments else Any

    # Calling it ---------------------------------------------------------------------------------------

    def read(self, body: bytes, raw_properties: bytes) -> Any:
        """Return the body as the type that the handler asks for. Raises `Malformed`."""
        return self._reader.read(body, raw_properties) if self._reader is not None else None

    def arguments(self, body: Any, message: Message | None, session: Any) -> dict[str, Any]:
        arguments = dict(self._extras)
        if self._session is not None:
            arguments[self._session] = session
        if self._body is not None:
            arguments[self._body[0]] = body
        if self._message is not None:
            arguments[self._message] = message
        return arguments

    # These return an awaitable and are not coroutines themselves: that is one object less for every message.

    def call(self, body: Any, message: Message, session: Any = None) -> Awaitable[Any]:
        return self._run(self.arguments(body, message, session))

    def call_with_batch(self, batch: Batch[Any], session: Any = None) -> Awaitable[Any]:
        return self._run(self.arguments(batch if self._wants_batch else batch.bodies, None, session))

    def _run(self, arguments: dict[str, Any]) -> Awaitable[Any]:
        return self.function(**arguments) if self.is_async else self._call_in_pool(arguments)

    async def finish(self, result: Any) -> Any:
        """Return the result of a call, after awaiting what is left to do."""
        while inspect.isawaitable(result):
            result = await result
        _check_result(result)
        return result

    async def _call_in_pool(self, arguments: dict[str, Any]) -> Any:
        loop = asyncio.get_running_loop()
        if not self._processes:
            context = copy_context()
            return await loop.run_in_executor(self._pool(), lambda: context.run(_call, self.function, arguments))
        pool = self._pool()
        try:
            await loop.run_in_executor(pool, _call_as_process, self.function, arguments)
        except BrokenProcessPool as error:
            if self._executor is pool:
                self._executor = None  # the next call makes a new one
            raise HandlerDied(f"the process that ran {self.name} died") from error

    def _pool(self) -> Executor:
        if self._executor is None:
            if self._processes:
                self._executor = ProcessPoolExecutor(self._workers, mp_context=get_context("spawn"))
            else:
                self._executor = ThreadPoolExecutor(self._workers, thread_name_prefix=f"redrive-{self.name}")
        return self._executor

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def __repr__(self) -> str:
        where = "async" if self.is_async else f"{self._workers} {'processes' if self._processes else 'threads'}"
        return f"<Handler {self.name} {where}>"


# In a thread, and in a process ---------------------------------------------------------------------------


def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return function(**arguments)
    except StopIteration as error:  # which no future can hold: its waiter would wait indefinitely
        raise RuntimeError("the handler raised StopIteration") from error


def _call_as_process(function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Call a function in another process. Its return value stays here. An error that cannot be pickled is replaced by
    its text: one that cannot be read on the other side would break the whole pool.
    """
    try:
        _check_result(_call(function, arguments))
    except Exception as error:
        if _can_be_pickled(error):
            raise
        raise picklable_error(error) from None


def _check_result(result: Any) -> None:
    if inspect.isgenerator(result) or inspect.isasyncgen(result) or inspect.iscoroutine(result):
        raise TypeError(f"the handler gave back a {type(result).__name__}, whose code did not run")


def _can_be_pickled(error: Exception) -> bool:
    try:
        return type(pickle.loads(pickle.dumps(error))) is type(error)
    except Exception:
        return False


class FailedElsewhere(Exception):
    """Stands for an error of another process that could not be pickled. It has the name and the text of that error."""

    def __reduce__(self) -> tuple[Any, ...]:
        names = [(kind.__module__, kind.__qualname__) for kind in type(self).__mro__]
        return _rebuild, (tuple(names[: names.index((__name__, FailedElsewhere.__qualname__))]), str(self))


def picklable_error(error: Exception) -> FailedElsewhere:
    names = [(kind.__module__, kind.__qualname__) for kind in type(error).__mro__]
    return _rebuild(tuple(names[: names.index(("builtins", "Exception"))]), safe_str(error))


def _rebuild(names: tuple[tuple[str, str], ...], text: str) -> FailedElsewhere:
    return _error_class(names)(text)


@lru_cache(256)
def _error_class(names: tuple[tuple[str, str], ...]) -> type[FailedElsewhere]:
    """Return a class of that name, whose bases have the names of its bases: errors are recognised by these."""
    if not names:
        return FailedElsewhere
    (module, name), *bases = names
    return type(name.rpartition(".")[2], (_error_class(tuple(bases)),), {"__module__": module, "__qualname__": name})
