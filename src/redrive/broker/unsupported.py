"""What the embedded broker deliberately does not do, and what to use instead.

`docs/embedded-broker.md` shows it as a table.
"""

UNSUPPORTED = {
    "clusters, mirrors, replication": "one process, one machine; point the same program at RabbitMQ",
    "streams (`x-queue-type: stream`)": "refused with 406",
    "policies": "arguments at declaration",
    "the management API and its statistics": "passive declares count exactly",
    "TLS on the listener": "loopback, or a proxy in front",
    "permissions": "one user list; whoever may connect may do everything",
    "`EXTERNAL` and other SASL mechanisms": "PLAIN and AMQPLAIN",
    "`consumer_timeout`": "a delivery may stay unacknowledged indefinitely",
    "native delayed retry of quorum queues (`x-delayed-retry-*`)": "accepted and without effect",
    "quorum queues as a replicated log": "a durable queue with delivery counts and limits, on one disk",
    "`at-least-once` dead-lettering as an option": "every dead letter is moved in one transaction",
    "lazy queues (`x-queue-mode`)": "accepted; all messages are held in memory, durable ones on disk as well",
    "`connection.update-secret`": "accepted and without effect",
    "shovel, federation, other plugins but the delayed exchange": "clients",
    "`expiration` rewritten as a number (4.x)": "delivered as the publisher wrote it",
}
