"""pika: the blocking adapter most programs use, and for publishing also the asynchronous one, which can pipeline.

`BlockingChannel.basic_publish` with confirms waits for each message: there is one in flight, by design.
"""

from __future__ import annotations

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.channel import Channel
from pika.frame import Method
from pika.spec import Basic, BasicProperties

from bench.contract import NotDone, Stopwatch, System
from bench.messages import MessageJob, decode, encode

system = System("pika", packages=("pika",))

JSON = BasicProperties(content_type="application/json", delivery_mode=2)


@system.contends("publish", one_at_a_time=True)
def publish(job: MessageJob, watch: Stopwatch) -> None:
    document = job.document()
    with pika.BlockingConnection(pika.URLParameters(job.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        with watch:
            for _ in range(job.count):
                channel.basic_publish("", job.queue, encode(document), JSON, mandatory=True)


@system.contends("publish", "SelectConnection")
def publish_pipelined(job: MessageJob, watch: Stopwatch) -> None:
    pipeline = _Pipeline(job, watch)
    connection: pika.SelectConnection = pika.SelectConnection(
        pika.URLParameters(job.url),
        on_open_callback=lambda _: connection.channel(on_open_callback=pipeline.begin),
        on_open_error_callback=_raise,
        on_close_callback=lambda *_: connection.ioloop.stop(),
    )
    connection.ioloop.start()


class _Pipeline:
    """Keeps a window of messages unconfirmed, as pika's asynchronous publisher example counts them."""

    def __init__(self, job: MessageJob, watch: Stopwatch) -> None:
        self._job = job
        self._watch = watch
        self._document = job.document()
        self._sent = 0
        self._unconfirmed: dict[int, None] = {}  # delivery tags, in order

    def begin(self, channel: Channel) -> None:
        channel.confirm_delivery(ack_nack_callback=self._settled, callback=lambda _: self._start(channel))

    def _start(self, channel: Channel) -> None:
        self._channel = channel
        self._watch.__enter__()
        self._fill_window()

    def _fill_window(self) -> None:
        job = self._job
        while self._sent < job.count and len(self._unconfirmed) < job.window:
            self._channel.basic_publish("", job.queue, encode(self._document), JSON, mandatory=True)
            self._sent += 1
            self._unconfirmed[self._sent] = None

    def _settled(self, confirm: Method) -> None:
        if not isinstance(confirm.method, Basic.Ack):
            raise NotDone("the broker refused a message")
        self._forget(confirm.method.delivery_tag, confirm.method.multiple)
        if self._sent == self._job.count and not self._unconfirmed:
            self._watch.__exit__()
            self._channel.connection.close()
        else:
            self._fill_window()

    def _forget(self, tag: int, multiple: bool) -> None:
        if not multiple:
            self._unconfirmed.pop(tag, None)
            return
        while self._unconfirmed and (oldest := next(iter(self._unconfirmed))) <= tag:
            del self._unconfirmed[oldest]


def _raise(_: object, error: BaseException) -> None:
    raise error


@system.contends("consume")
def consume(job: MessageJob, watch: Stopwatch) -> None:
    left = job.count

    def handle(channel: BlockingChannel, deliver: Basic.Deliver, _: BasicProperties, body: bytes) -> None:
        nonlocal left
        decode(body)
        channel.basic_ack(deliver.delivery_tag)
        left -= 1
        if not left:
            channel.stop_consuming()

    with pika.BlockingConnection(pika.URLParameters(job.url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=job.prefetch)
        with watch:
            channel.basic_consume(job.queue, handle)
            channel.start_consuming()
