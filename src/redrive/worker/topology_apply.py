"""Carry out a plan: make what is missing, and touch nothing else.

Nothing is ever deleted or purged. A plan with a conflict is not begun: half a topology is worse than the old one. If a
broker changes between plan and work, its refusal stops the work there; what was made stays, and another plan shows it.
"""

from __future__ import annotations

from collections.abc import Iterable

from redrive.errors import TopologyConflict, TopologyMissing
from redrive.topology.definitions import BindingDefinition, Definition, ExchangeDefinition, QueueDefinition
from redrive.topology.plan import Action, Plan, PlanStep
from redrive.worker.ports import Declarer


async def provision(plan: Plan, broker: Declarer) -> tuple[PlanStep, ...]:
    """Make what the plan wants made, in an order that works, and say what that was."""
    _refuse_conflicts(plan)
    _refuse_missing(plan, plan.steps_by(Action.MISSING))
    steps = plan.steps_by(Action.CREATE, Action.UNSEEN)
    await declare((step.definition for step in steps), broker)
    return steps


def require_applied(plan: Plan) -> None:
    """For those who make nothing: is everything there, and as wanted? What plain AMQP cannot see is taken on trust."""
    _refuse_conflicts(plan)
    _refuse_missing(plan, plan.steps_by(Action.CREATE, Action.MISSING))


def _refuse_conflicts(plan: Plan) -> None:
    if plan.conflicts:
        raise TopologyConflict([str(step) for step in plan.conflicts])


def _refuse_missing(plan: Plan, missing: tuple[PlanStep, ...]) -> None:
    if missing:
        existing = [str(step.definition) for step in plan.steps_by(Action.MISSING)]
        raise TopologyMissing([str(step.definition) for step in missing], existing)


async def declare(definitions: Iterable[Definition], broker: Declarer) -> None:
    for definition in definitions:
        match definition:
            case ExchangeDefinition():
                await broker.declare_exchange(
                    definition.name,
                    definition.type,
                    durable=definition.durable,
                    auto_delete=definition.auto_delete,
                    internal=definition.internal,
                    arguments=definition.arguments,
                )
            case QueueDefinition():
                await broker.declare_queue(
                    definition.name,
                    durable=definition.durable,
                    auto_delete=definition.auto_delete,
                    arguments=definition.arguments,
                )
            case BindingDefinition(destination_type="queue"):
                await broker.bind_queue(
                    definition.destination, definition.source, definition.routing_key, definition.arguments
                )
            case BindingDefinition():
                await broker.bind_exchange(
                    definition.destination, definition.source, definition.routing_key, definition.arguments
                )
