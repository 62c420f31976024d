"""The embedded broker: RabbitMQ's semantics in-process, for any AMQP 0-9-1 client.

| module             | what                                                                          |
|--------------------|-------------------------------------------------------------------------------|
| `server`           | listens, and creates a session for each client                                |
| `session`          | one client's connection: flow control, heartbeats, closing                    |
| `channel`          | a channel: its consumers, unacknowledged deliveries and publisher confirms    |
| `methods/`         | what the broker does for each AMQP method: one file per class                 |
| `settlement`       | ack, nack, reject and recover, and what they do to queues                     |
| `consumer`         | a consumer on a channel, as a queue sees it                                   |
| `vhost`            | exchanges, queues and bindings: declared, deleted, restored                   |
| `routing`          | which queues a message goes to, also as a dead letter                         |
| `exchanges/`       | which destinations a message goes to: one file for each type                  |
| `queue`            | ready and unacknowledged messages: delivery, expiry, overflow, dead-lettering |
| `quorum`           | what a quorum queue does differently                                          |
| `ready_queue`      | in which order messages are delivered                                         |
| `deadletter`       | the x-death header and what else dead-lettering changes                       |
| `delayed_exchange` | messages that an `x-delayed-message` exchange holds back                      |
| `queue_arguments`  | what the arguments of a queue mean                                            |
| `errors`           | channel and connection exceptions, with RabbitMQ's codes and texts            |
| `dialect`          | where RabbitMQ's versions differ                                              |
| `storage/`         | the journal: durable changes on SQLite, committed in groups                   |

It shares the codec and the protocol with the client, and no policy: it is also the double against which the
client and everything above it is tested.
"""
