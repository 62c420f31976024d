"""Where RabbitMQ's versions differ in what a client can see.

Each field is one fact, measured on the version that the dialect announces (Debian's packages) and told by its
comment; `tests/contracts` runs the facts against the real ones. What is the same everywhere is not here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialect:
    version: str  # what connection.start announces; clients choose arguments by it

    # Dead letters -------------------------------------------------------------------------------------

    # An x-death header that a client published is history to this broker, which counts on from it. It is then also
    # the only record: its entries keep their unknown fields, and all but the newest change order at each death.
    # Where False, the broker keeps a record of its own and replaces whatever x-death a client wrote.
    believes_client_x_death: bool = False
    # x-last-death-queue, -reason and -exchange, written at each death.
    writes_last_death: bool = True
    # Dead-lettering with x-dead-letter-routing-key takes the CC header away. Where False it stays to be read, and is
    # no route any more. (Without that key CC stays everywhere, and is a route.)
    removes_cc_on_dead_letter_key: bool = False
    # original-expiration is the number that the publisher's text meant ("0100" becomes "100"), not the text.
    reads_expiration_as_number: bool = True

    # Exchanges ----------------------------------------------------------------------------------------

    # How many `#` a topic binding may hold; one more is PRECONDITION_FAILED.
    most_hashes: int | None = 2
    # A headers exchange finds 1 equal to 1.0, and 0.0 to -0.0.
    equates_numbers: bool = False
    # A headers exchange compares the milliseconds of a message's timestamp header with the seconds of the binding's:
    # no timestamp matches itself, and the number of its milliseconds does.
    matches_timestamps_in_ms: bool = True

    # Quorum queues ------------------------------------------------------------------------------------

    # x-delivery-limit when a queue does not say.
    default_delivery_limit: int | None = 20
    # x-delivery-limit -1 means none. Where False it is accepted, and every message is dead at its first return.
    allows_unlimited_deliveries: bool = True
    # basic.nack and basic.recover count as failures, as basic.reject and a lost channel do.
    nack_counts: bool = False
    # A message given back takes the place it had. Where False, in a queue without a delivery limit, nack(requeue) and
    # reject(requeue) put it behind the others; a channel that ends gives back to the old places even then.
    keeps_order_on_return: bool = True
    # A dead letter, of a classic queue too, takes the count of its failed deliveries along, a last rejection included:
    # the queue that gets it calls it redelivered, and if it is a quorum queue, counts on.
    remembers_failures: bool = True
    # A channel that ends gives back each consumer's messages in turn, by the tags of the consumers; who got a message
    # counts as a consumer whose tag is the delivery tag. Where False: in the order in which the consumers came, and
    # then those who got one.
    returns_by_name: bool = False
    # basic.get brings x-delivery-count at the first delivery, as 0. To consumers, and where False, it comes with the
    # second.
    writes_zero_delivery_count: bool = False
    # A single active consumer yields to one of a higher priority that comes later, when it has settled what it has.
    # Where False, as in classic queues, it stays until it leaves; the next one is then who has waited for longest.
    active_consumer_yields: bool = True
    # How many priorities there are, without being asked for: 1 means none. Of two the upper one gets two thirds of the
    # deliveries; of 32 each comes before all lower ones.
    quorum_priorities: int = 32
    # Messages expire at the head of each priority, and of those that came back. Where False, at the head of the queue.
    expires_by_priority: bool = True
    # x-max-length-bytes counts the properties of a message, too.
    counts_properties: bool = True
    # x-acquired-count: every delivery that came back, whether or not it counts towards the limit; before the first one,
    # what a dead letter brought along.
    writes_acquired_count: bool = True

    # Declarations -------------------------------------------------------------------------------------

    # A queue that is declared again with another type: one that does not say its type says "classic". Where False, it
    # says nothing, in the words of the refusal.
    names_default_queue_type: bool = True
    # An unknown exchange type is PRECONDITION_FAILED, which ends the channel. Where False it is
    # COMMAND_INVALID, which ends the connection.
    unknown_type_ends_channel: bool = True
    # x-queue-mode may be anything. Where True it is `default` or `lazy`.
    checks_queue_mode: bool = False
    # What a refusal to get from a quorum queue with a single active consumer calls its type.
    quorum_in_words: str = '<<"quorum">>'

    # Limits and the rest ------------------------------------------------------------------------------

    # Bytes of a frame: the least that a client may settle on, and the most that it may send before it has.
    smallest_frame_max: int = 8192
    # Bytes of body; more is PRECONDITION_FAILED.
    max_message_size: int = 16 * 1024 * 1024
    # A delivery mode other than 1 and 2 is PRECONDITION_FAILED. Where False it is taken for 1.
    refuses_unknown_delivery_modes: bool = False
    # basic.qos(global) limits the channel, which then cannot consume from a quorum queue. Where False it is taken for a
    # limit per consumer.
    allows_global_qos: bool = False
    # Headers are delivered sorted by name, whether or not the message ever died. Where False, only after a death.
    sorts_headers: bool = True


DIALECTS = {
    "3.10": Dialect(
        version="3.10.8",
        believes_client_x_death=True,
        writes_last_death=False,
        removes_cc_on_dead_letter_key=True,
        reads_expiration_as_number=False,
        most_hashes=None,
        equates_numbers=True,
        matches_timestamps_in_ms=False,
        default_delivery_limit=None,
        allows_unlimited_deliveries=False,
        nack_counts=True,
        keeps_order_on_return=False,
        remembers_failures=False,
        returns_by_name=True,
        writes_zero_delivery_count=True,
        active_consumer_yields=False,
        quorum_priorities=1,
        expires_by_priority=False,
        counts_properties=False,
        writes_acquired_count=False,
        names_default_queue_type=False,
        unknown_type_ends_channel=False,
        checks_queue_mode=True,
        quorum_in_words="quorum",
        smallest_frame_max=4096,
        max_message_size=128 * 1024 * 1024,
        refuses_unknown_delivery_modes=True,
        allows_global_qos=True,
        sorts_headers=False,
    ),
    "4.0": Dialect(
        version="4.0.5",
        most_hashes=None,
        nack_counts=True,
        keeps_order_on_return=False,
        remembers_failures=False,
        quorum_priorities=2,
        expires_by_priority=False,
        counts_properties=False,
        writes_acquired_count=False,
        checks_queue_mode=True,
        smallest_frame_max=4096,
        allows_global_qos=True,
    ),
    "4.3": Dialect(version="4.3.6"),
}
LATEST = DIALECTS["4.3"]
