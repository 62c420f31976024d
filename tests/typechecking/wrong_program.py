"""A program in which each line that ends in `# wrong` is a mistake: a type checker reports these lines and no other."""

from datetime import timedelta

from sqlalchemy.orm import Session

from redrive import App, BreakerPolicy, ConsumerOptions, Exponential, Nonsense, Queue, Retry, Router  # wrong

app = App("shop")
events = app.exchange("events", "topic")


def handle(body: bytes) -> None: ...


app.consumer("a", concurency=4)(handle)  # wrong
app.consumer("b", retry="3")(handle)  # wrong
app.consumer("c", retry=3)(handle)  # wrong
app.consumer("d", timeout=object())(handle)  # wrong
app.consumer("e", timeout=30)(handle)  # wrong
app.consumer("f", bind="order.*")(handle)  # wrong
app.consumer("g", bind=events)(handle)  # wrong
app.consumer("h", park="drop")(handle)  # wrong
app.consumer("i", type="quorom")(handle)  # wrong
app.consumer("j", dlq=5)(handle)  # wrong
app.consumer("k", size=10)(handle)  # wrong
app.consumer("l", breaker=True)(handle)  # wrong
app.consumer("m", headers={"attempts": "x-retries"})(handle)  # wrong
app.consumer("n", inbox="yes")(handle)  # wrong
app.consumer(5)(handle)  # wrong
app.consumer("o")("handle")  # wrong
app.batch_consumer("p", max_wait=5)(handle)  # wrong
app.batch_consumer("q", call_timeout="5s")(handle)  # wrong
app.dlq_consumer("r", retry=Retry())(handle)  # wrong
app.dlq_batch_consumer("s", bind=events.on("a"))(handle)  # wrong
app.queue("t", retries=3)  # wrong
app.exchange("u", "topic", durabel=True)  # wrong
App("v", brokr="amqp://localhost")  # wrong
App("w", clock=5)  # wrong
App("x", patience=30)  # wrong
App(defaults={"retrry": Retry()}, name="y")  # wrong
Router(defaults={"retry": 3})  # wrong
Retry(3)  # wrong
Retry(atempts=3)  # wrong
Retry(exponential="5s")  # wrong
Retry(steps="30s", delay=30)  # wrong
Exponential(5)  # wrong
BreakerPolicy(failure_rate="50%")  # wrong
Queue("z", dlq={KeyError: "z.dead"})  # wrong
options: ConsumerOptions = {"timeout": 5}  # wrong


async def publish(session: Session) -> None:
    await app.publish(events, "a", {}, expires="5s")  # wrong
    await app.publish(events, "a", {}, ordering_key="1")  # wrong
    await app.publish(events, "a", {}, session=session, after="5s")  # wrong
    await app.publish(5, "a", {})  # wrong
    await app.publish(events, "a", {}, after=timedelta(seconds=5))
    app.outbox.add(session, events, "a", {}, orderingkey="1")  # wrong
    await app.outbox.add(session, events, "a", {})  # wrong
