"""The embedded broker: RabbitMQ's semantics in-process, for any AMQP 0-9-1 client.

| module             | what                                                                                     |
|--------------------|------------------------------------------------------------------------------------------|
| `server`           | listens, and creates a session for each client                                           |
| `session`          | one client's connection: flow control, heartbeats, closing                               |
| `channel`          | a channel: its consumers, unacknowledged deliveries and publisher confirms               |
| `settlement`       | ack, nack, reject and recover, and what they do to queues                                |
| `consumer`         | a consumer on a channel, as a queue sees it                                              |
| `vhost`            | exchanges, queues and bindings: declared, deleted, restored                              |
| `routing`          | which queues a message goes to, also as a dead letter                                    |
| `queue`            | ready and unacknowledged messages: delivery, expiry, overflow, dead-lettering            |
| `quorum`           | what a quorum queue does differently                                                     |
| `ready_queue`      | in which order messages are delivered                                                    |
| `deadletter`       | the x-death header and what else dead-lettering changes                                  |
| `delayed_exchange` | messages that an `x-delayed-message` exchange holds back                                 |
| `queue_arguments`  | what the arguments of a queue mean                                                       |
| `errors`           | channel and connection exceptions, with RabbitMQ's codes and texts                       |
| `dialect`          | where RabbitMQ's versions differ                                                         |
| `broker`           | the broker                                                                               |
| `clock`            | what time it is for a broker, and waking up at a time                                    |
| `direct_reply_to`  | direct reply-to                                                                          |
| `exchanges`        | exchanges                                                                                |
| `memory_alarm`     | the memory used by queues and delayed exchanges, and the alarm when it exceeds the limit |
| `message`          | a message as the broker holds it                                                         |
| `methods`          | what the broker does for each method that a client sends on a channel                    |
| `shared`           | one data folder, one broker, any number of processes                                     |
| `status_queue`     | the exchanges, queues and bindings of a virtual host, read by `basic.get` from the queue |
| `storage`          | what the broker must not forget, and where it is kept                                    |
| `unsupported`      | what the embedded broker deliberately does not do, and what to use instead               |

It shares the codec and the protocol with the client, and no policy: it is also the double against which the
client and everything above it is tested.
"""
