"""The kinds of problems that the admin API answers with: names that do not change, and what each is said for."""

from __future__ import annotations

from typing import NamedTuple

TYPE = "urn:redrive:problem:"


class ProblemType(NamedTuple):
    name: str
    status: tuple[int, ...]
    when: str
    do: str


KINDS = {
    kind.name: kind
    for kind in (
        ProblemType(
            "unauthenticated",
            (401,),
            "nobody, or nobody who is known",
            "Send a key or a token: `Authorization: Bearer ...`. `redrive admin keys create` makes keys.",
        ),
        ProblemType(
            "not-allowed",
            (403,),
            "somebody who may not do that",
            "Ask somebody with the role that the detail names.",
        ),
        ProblemType(
            "cross-site",
            (403,),
            "a browser was sent here by another site",
            "Open the console itself, and do it there. Programs send no cookie, and are not concerned.",
        ),
        ProblemType(
            "not-editable",
            (403, 422),
            "changing messages is switched off (403), or this one cannot be changed so (422)",
            "`REDRIVE_ADMIN_EDITING=1` switches it on; else change what the detail names.",
        ),
        ProblemType(
            "not-found",
            (404,),
            "no such page, queue, message or operation, or a queue that this server does not accept",
            "Ask for the list it was in: it may have been moved meanwhile.",
        ),
        ProblemType(
            "method-not-allowed", (405,), "the path is there, and not for this method", "See the `Allow` header."
        ),
        ProblemType("too-slow", (408,), "the rest of a request did not come", "Send it whole, and at once."),
        ProblemType(
            "too-large",
            (413,),
            "the body of a request is larger than any that makes sense here",
            "Send less: what many messages are to become is said once, not for each of them.",
        ),
        ProblemType(
            "peek-unsafe",
            (409,),
            "looking could lose messages",
            "`fix` says how to fix the queue.",
        ),
        ProblemType(
            "not-a-dead-letter-queue",
            (409,),
            "the queue is not known to be a dead-letter queue, or has consumers",
            "Check the name. An operator can specify `any_queue`, by a POST.",
        ),
        ProblemType(
            "operation-in-progress",
            (409,),
            "another operation has the queue",
            "`holder` says which: wait for it, or cancel it.",
        ),
        ProblemType(
            "operation-over",
            (409,),
            "the operation has ended, and cannot be changed any more",
            "`state` is how it ended. Begin another operation for the messages that are left.",
        ),
        ProblemType(
            "plan-expired",
            (409,),
            "the plan was carried out already, or is too old",
            "Plan again, and look at what it would do now.",
        ),
        ProblemType(
            "target-unroutable",
            (409,),
            "there is nothing where the messages should go",
            "Make the queue, or name another target.",
        ),
        ProblemType(
            "request-in-progress",
            (409,),
            "a request with this Idempotency-Key is being answered",
            "Wait, and send the same request with the same key again: it is answered as the first one was.",
        ),
        ProblemType(
            "key-reused",
            (422,),
            "this Idempotency-Key was used for another request",
            "A new key for each request that is not the same.",
        ),
        ProblemType(
            "invalid-request",
            (422,),
            "what was asked for makes no sense; says what would",
            "Correct what `detail`, `errors` or `position` point at. The whole API is in docs/openapi.json.",
        ),
        ProblemType(
            "too-many-attempts",
            (429,),
            "too many failed sign-ins",
            "Wait as long as `Retry-After` says.",
        ),
        ProblemType(
            "internal-error",
            (500,),
            "what nobody expected",
            "The server's log has the traceback: report it.",
        ),
        ProblemType(
            "broker-refused",
            (502,),
            "the broker does not let this server do that",
            "Grant the server's user the permission that the detail names.",
        ),
        ProblemType(
            "broker-unavailable",
            (503,),
            "the broker is away; it is being looked for",
            "Ask again after `Retry-After`. `redrive ping` tries the broker alone.",
        ),
        ProblemType(
            "database-unavailable",
            (503,),
            "the database is away, or lacks its tables",
            "Bring it back; `redrive db upgrade` makes the tables.",
        ),
        ProblemType(
            "tokens-unavailable",
            (503,),
            "what tokens are checked with (JWKS) is not to be had",
            "Ask again after `Retry-After`; API keys work meanwhile.",
        ),
        ProblemType(
            "audit-unavailable",
            (503,),
            "what was to be done cannot be recorded, so it was not done",
            "Bring the database back, then ask again.",
        ),
    )
}
