"""The embedded broker: RabbitMQ's semantics in-process, for any AMQP 0-9-1 client.

| module             | what                                                                             |
|--------------------|----------------------------------------------------------------------------------|
| `server`           | listens, and hands each client a session                                         |
| `session`          | one client's connection: handshake, flow, farewell                               |
| `channel`          | what a client asks for on a channel, one method for each of AMQP's               |
| `vhost`            | exchanges, queues, bindings, and the way of a message through them               |
| `exchanges/`       | who gets a message: one file for each type                                       |
| `queue`            | messages that are ready or with consumers, and when they expire, overflow or die |
| `quorum`           | what a quorum queue does otherwise                                               |
| `ready_queue`      | in which order messages are delivered                                            |
| `deadletter`       | what dying does to a message                                                     |
| `delayed_exchange` | messages that an `x-delayed-message` exchange holds back                         |
| `queue_arguments`  | what the arguments of a queue mean                                               |
| `errors`           | channel and connection exceptions, with RabbitMQ's codes and texts               |
| `dialect`          | where RabbitMQ's versions differ                                                 |
| `storage/`         | the journal: durable things on SQLite, in groups                                 |

It shares the codec and the protocol with the client, and no policy: it is also the double against which the
client and everything above it is tested.
"""
