"""What a finding is, and every rule that makes findings, in the order in which they are reported.

docs/doctor.md is written from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from redrive.topology.doctor import cycle_rules, dead_letter_rules, retention_rules, ttl_rules, version_rules
from redrive.topology.doctor.context import Occurrence, RuleContext


class Severity(StrEnum):
    """Worst first."""

    ERROR = "error"  # messages get lost, or something cannot work, as things are
    WARNING = "warning"  # messages get lost when something else goes wrong, or with the next version
    INFO = "info"  # good to know

    @property
    def rank(self) -> int:
        return list(Severity).index(self)

    def reaches(self, other: Severity) -> bool:
        """Is it at least as bad?"""
        return self.rank <= other.rank


@dataclass(frozen=True, slots=True)
class Finding:
    id: str  # stable: scripts may rely on it
    severity: Severity
    title: str
    subject: str  # the queue or exchange; empty for the broker itself
    evidence: str  # what was seen
    fix: str  # the command or argument that fixes it

    def __str__(self) -> str:
        return f"{self.severity}: {self.subject or 'the broker'}: {self.title} [{self.id}]"


Check: TypeAlias = "Callable[[RuleContext], Iterator[Occurrence]]"


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of finding. `happens` and `remedy` are for the documentation: what it leads to, and how to fix it."""

    id: str
    severity: Severity
    title: str
    happens: str
    remedy: str
    check: Check
    needs: Literal["policies", "bindings", "plugins"] | None = None  # beyond the arguments of known queues

    def applies(self, context: RuleContext) -> bool:
        """Can it be judged by what was seen? If not it reports nothing, rather than guess."""
        return context.is_complete or self.needs is None

    def findings(self, context: RuleContext) -> Iterator[Finding]:
        for one in self.check(context):
            yield Finding(self.id, self.severity, self.title, one.subject, one.evidence, one.fix)


def not_examined(context: RuleContext) -> Iterator[Occurrence]:
    if not context.is_complete:
        rules = ", ".join(rule.id for rule in RULES if not rule.applies(context))
        unseen = "no policies, bindings, plugins, and no queue that nobody asked about"
        evidence = f"plain AMQP shows {unseen}; not judged: {rules}"
        yield Occurrence("", evidence, "redrive doctor APP --management http://user:password@host:15672")


RULES = (
    # Errors: messages get lost as things are.
    Rule(
        "peek-deletes",
        Severity.ERROR,
        "tools that get and requeue messages can delete them from this dead-letter queue",
        "A quorum queue counts a message that is got and requeued as delivered. Beyond the limit (20 by default from "
        'RabbitMQ 4.0 on) it deletes the message. Before 4.3 every requeue counts: "Get messages" in the management '
        "UI, other tools, and peeks of Redrive, which refuses them. On 4.3 peeks of Redrive are free, but a reject, a "
        'lost connection and "Get messages" can count. Measured on 4.3.6, after 25 gets from a queue of 46: "Reject '
        'requeue true" had deleted every message that was got (16 runs), "Nack message requeue true" those beyond '
        "the 33rd of one get (15 runs), and none when up to 33 were got at once (13 runs).",
        "`x-delivery-limit: -1` from 4.0 on, as an argument or by policy; below, no limit",
        retention_rules.peek_deletes,
    ),
    Rule(
        "negative-delivery-limit",
        Severity.ERROR,
        "a delivery limit below zero, which this version takes literally",
        'Before 4.0 it does not mean "none": a message is dropped when it comes back for the first time.',
        "no `x-delivery-limit`",
        retention_rules.negative_delivery_limit,
    ),
    Rule(
        "dlx-missing",
        Severity.ERROR,
        "its dead-letter exchange does not exist",
        "Every dead letter is dropped without a trace; with at-least-once they stay behind and block each other.",
        "declare the exchange and bind a queue to it, or `redrive topology apply APP`",
        dead_letter_rules.dlx_missing,
    ),
    Rule(
        "dlx-unroutable",
        Severity.ERROR,
        "its dead letters reach no queue",
        "The exchange is there, but no queue is bound for the key. Without `x-dead-letter-routing-key` a message keeps "
        "its own, and after a retry through the default exchange that is the queue's name.",
        "bind a queue for the key, or give `x-dead-letter-routing-key`",
        dead_letter_rules.dlx_unroutable,
    ),
    Rule(
        "cycle-expires",
        Severity.ERROR,
        "a circle of queues with TTLs",
        "RabbitMQ drops a message that comes back to a queue in which it died before, unless it was rejected on the "
        "way. Here nobody rejects: gone at the second lap.",
        "let the circle end in a queue without TTL",
        cycle_rules.cycle_expires,
    ),
    Rule(
        "cycle-main-expires",
        Severity.ERROR,
        "a queue for work has a TTL, and its dead letters come back to it",
        "What expires before anybody rejects it comes back as a cycle and is dropped; on 4.x also what was rejected "
        "before.",
        "no TTL on the queue, or its dead letters to a DLQ and retries with `via='republish'`",
        cycle_rules.cycle_main_expires,
    ),
    Rule(
        "cycle-overflow",
        Severity.ERROR,
        "a full queue drops messages, because its dead letters come back to it",
        "What `max-length` pushes out passes through the retry loop, comes back as a cycle and is dropped.",
        "`x-overflow: reject-publish`",
        cycle_rules.cycle_overflow,
    ),
    Rule(
        "cycle-delivery-limit",
        Severity.ERROR,
        "messages that kill their consumer are dropped, because dead letters come back",
        "At its delivery limit (by default 20 from 4.0 on) a message passes through the retry loop, comes back "
        "as a cycle and is dropped, or with at-least-once stays in the retry queue indefinitely.",
        "`x-delivery-limit: -1` from 4.0 on; or dead letters to a DLQ and retries with `via='republish'`",
        cycle_rules.cycle_delivery_limit,
    ),
    Rule(
        "ttl-no-way-back",
        Severity.ERROR,
        "messages wait here and then vanish",
        "A queue with a TTL, without consumers and without dead-letter exchange: whatever enters is deleted.",
        "`x-dead-letter-exchange` and `x-dead-letter-routing-key` to the queue that the messages return to",
        ttl_rules.ttl_no_way_back,
        "policies",
    ),
    Rule(
        "consumer-timeout",
        Severity.ERROR,
        "the broker gives up before the handler does",
        "An ack that takes longer than `consumer_timeout` (30 minutes) ends the channel, and on 4.3 the consumer of a "
        "quorum queue; the message is delivered again while its handler still works.",
        "a longer `consumer_timeout` in rabbitmq.conf, `x-consumer-timeout` from 4.3 on, or a shorter limit",
        version_rules.consumer_timeout,
    ),
    Rule(
        "delayed-no-plugin",
        Severity.ERROR,
        "a delayed exchange without the plugin for it",
        "It cannot be declared, or it is left from before the plugin went: publishing to it fails.",
        "`rabbitmq-plugins enable rabbitmq_delayed_message_exchange`, or `via='delayed'` without such an exchange",
        version_rules.delayed_no_plugin,
        "plugins",
    ),
    # Warnings: messages get lost when something else goes wrong, or with the next version.
    Rule(
        "ttl-drops",
        Severity.WARNING,
        "what is not handled in time vanishes",
        "A queue for work with a TTL and without dead-letter exchange: consumers that are slow or down cost messages.",
        "a dead-letter exchange, or no TTL",
        ttl_rules.ttl_drops,
        "policies",
    ),
    Rule(
        "ttl-lost-by-name",
        Severity.WARNING,
        "messages published to this retry queue by its name vanish when their TTL is over",
        "Without `x-dead-letter-routing-key` a message returns with the key it was published with. Published to the "
        "queue directly, through the default exchange, its key is the queue's name, and the dead-letter exchange has "
        "no queue bound for that key. RabbitMQ drops the message and reports nothing.",
        "bind the main queue to the dead-letter exchange with the retry queue's name as the key",
        ttl_rules.ttl_lost_by_name,
        "bindings",
    ),
    Rule(
        "ttl-consumed",
        Severity.WARNING,
        "somebody consumes from a queue in which messages should wait",
        "Retries do not wait, or are taken by somebody who does not know what to do with them.",
        "consume from the main queue only",
        ttl_rules.ttl_consumed,
    ),
    Rule(
        "no-dlq",
        Severity.WARNING,
        "rejected messages vanish",
        "A queue for work without dead-letter exchange: what is rejected, expires or reaches the delivery limit is "
        "deleted.",
        "a dead-letter queue; a policy can add it to a queue that exists",
        dead_letter_rules.no_dlq,
        "policies",
    ),
    Rule(
        "dlq-evicts",
        Severity.WARNING,
        "this dead-letter queue forgets",
        "A TTL, a maximal length or an expiry: dead letters are deleted, or no more are taken, and nobody is told.",
        "no TTL, length or expiry on a dead-letter queue",
        retention_rules.dlq_evicts,
    ),
    Rule(
        "at-most-once",
        Severity.WARNING,
        "a quorum queue hands its dead letters over without making sure",
        "A dead letter can get lost if the broker dies meanwhile, or if the target is missing or full.",
        "`x-dead-letter-strategy: at-least-once` with `x-overflow: reject-publish`",
        dead_letter_rules.at_most_once,
        "policies",
    ),
    Rule(
        "at-least-once-ineffective",
        Severity.WARNING,
        "at-least-once dead-lettering that is none",
        "It needs `x-overflow: reject-publish`. Without, RabbitMQ falls back to at-most-once; only its log says so.",
        "`x-overflow: reject-publish`",
        dead_letter_rules.at_least_once_ineffective,
    ),
    Rule(
        "reject-classic",
        Severity.WARNING,
        "retries of a classic queue do not survive the broker's death",
        "On 4.x a classic queue that dead-letters loses messages when the broker is killed: 2 048 in every round "
        "measured.",
        "`via='republish'`, or a quorum queue with at-least-once",
        cycle_rules.reject_classic,
    ),
    Rule(
        "retry-shared",
        Severity.WARNING,
        "others receive this queue's retries",
        "What has waited goes through an exchange to which other queues are bound as well: they handle it again.",
        "back through the default exchange: `x-dead-letter-exchange: ''`, with the queue's name as the key",
        cycle_rules.retry_shared,
        "bindings",
    ),
    Rule(
        "transient-queue",
        Severity.WARNING,
        "a queue that is neither durable nor exclusive",
        "It is gone when the broker restarts. RabbitMQ 4 announces its end, and 4.3 refuses it unless told otherwise.",
        "durable (with `x-expires` if it is for a while), or exclusive",
        version_rules.transient_queue,
    ),
    Rule(
        "mirrored",
        Severity.WARNING,
        "a mirrored classic queue",
        "RabbitMQ 4.0 removed mirroring: the policy does nothing there, and the queue lives on one node only.",
        "a quorum queue",
        version_rules.mirrored,
        "policies",
    ),
    Rule(
        "delayed-ending",
        Severity.WARNING,
        "the delayed-message plugin is at its end",
        "It is archived, keeps what waits on one node only, and does not run on RabbitMQ 4.3.",
        "`via='delayed'` without the plugin: a ladder of queues",
        version_rules.delayed_ending,
    ),
    # Good to know.
    Rule(
        "parked-elsewhere",
        Severity.INFO,
        "the broker's own dead letters go to another queue than the application's",
        "A queue that is taken as it is (`existing=True`) keeps its dead-letter exchange. What its consumer parks goes "
        "to the application's dead-letter queue; what the broker removes goes where it went before.",
        "look into both; or lead the queue's dead letters to the application's dead-letter queue, by a policy or "
        "`redrive topology migrate`",
        dead_letter_rules.parked_elsewhere,
        "bindings",
    ),
    Rule(
        "not-examined",
        Severity.INFO,
        "not everything could be examined",
        "Plain AMQP lists no queues, bindings, policies or plugins. Rules that need them said nothing.",
        "`--management URL`",
        not_examined,
    ),
)
