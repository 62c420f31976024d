"""Every exception Redrive raises, in one tree.

The tree says whose fault it is, because that decides what to do next:

    RedriveError
    ├── ConfigurationError            yours: a setting makes no sense; nothing was started
    │   ├── InvalidURL
    │   ├── LetterAmbiguous           several messages of the dead-letter queue have that id; lists them
    │   ├── SearchError               a query for dead letters that makes no sense; points at the character
    │   ├── PatchError                a JSON Patch that makes no sense, or does not fit the body
    │   ├── NotJson                   a body that is not valid JSON, or a value that JSON cannot carry
    │   ├── EditRefused               an edit that AMQP cannot carry, or that a re-drive would undo
    │   ├── LetterError               a line of an export that is not a message
    │   └── TopologyError             a topology that no broker should get; holds every problem at once
    ├── TopologyConflict              the broker holds something else under a name that is wanted
    ├── TopologyMissing               the broker lacks what is wanted, and the application is not to make it
    ├── MigrationRefused              a queue was not migrated: says why; nothing was changed
    ├── MigrationPaused               a migration stopped half-way: nothing is lost, run it again
    ├── OperationConflict             another operation holds the dead-letter queue: one at a time
    ├── OperationOver                 the operation has ended: nothing about it can be changed
    ├── OperationNotFound             there is no operation of that id
    ├── LetterNotFound                there is no such message in the dead-letter queue
    ├── PeekUnsafe                    looking into a queue would bring its messages nearer to being dropped; not done
    ├── NotDeadLetterQueue            a queue that is not known to hold dead letters, or has consumers; not looked into
    ├── TransformFailed               one message could not be changed; it stays where it is
    ├── ArchiveError                  an archive cannot be opened, read or trusted
    ├── Unresolved                    the connection was lost before some messages of an operation were confirmed
    ├── DestinationUnavailable        the destination of an operation accepts nothing any more
    ├── NotDelivered                  a notification did not reach its receiver
    ├── KeyNotFound                   there is no API key of that id or name
    ├── AuditUnavailable              what is to be done cannot be recorded, so it was not done
    ├── DatabaseUnavailable           nobody's: the database cannot be reached; nothing was started
    ├── ProtocolError                 somebody broke AMQP
    │   ├── LocalProtocolError        yours: the call makes no sense now; nothing was sent
    │   │   ├── EncodingError         a value that AMQP cannot carry
    │   │   └── AlreadySettled        a delivery acked, nacked or rejected twice
    │   └── RemoteProtocolError       the peer's: it sent what AMQP forbids; the connection ends
    ├── BrokerError                   the broker said no, with an AMQP reply code
    │   ├── ChannelClosed             this operation failed; the connection lives on
    │   │   ├── AccessRefused  (403)
    │   │   ├── NotFound  (404)
    │   │   ├── ResourceLocked  (405)
    │   │   └── PreconditionFailed  (406)
    │   └── ConnectionClosed          the whole connection was ended by the broker
    │       └── AuthenticationFailed
    ├── ConsumerCancelled             the broker ended the consumer: its queue is gone or moved
    ├── ConnectionFailed              nobody's: no host could be reached; says what each answered
    ├── ConnectionLost                nobody's: the socket ended or fell silent
    ├── Closed                        yours: the object was closed before the call
    ├── PublishError                  a message that is not known to be safe with the broker
    │   ├── Unroutable                no queue is bound for it: it is nowhere
    │   ├── PublishRefused            the broker said no: it is not stored everywhere it should be
    │   ├── PublishUnknown            the connection ended before the confirm: it may or may not be stored
    │   └── NotPublished              it never left this process
    ├── StorageError                  the embedded broker's data directory cannot be used; nothing was overwritten
    │   ├── DirectoryInUse            another process has it
    │   ├── NotWritable               no permission, or a read-only file system
    │   ├── ForeignFile               the file was not made by a Redrive broker, and stays as it is
    │   ├── NewerFile                 a newer Redrive made it
    │   ├── CorruptFile               it is damaged
    │   └── StorageFailed             the disk failed: what was confirmed is safe, and nothing is confirmed any more
    │       └── DiskFull
    ├── Stuck                         messages of the demo are still unsettled after two minutes
    ├── Unauthenticated               missing or invalid credentials
    │   └── VerificationUnavailable   the keys to verify them with cannot be fetched now
    ├── NoRole                        a known principal without a role
    │   └── RoleTooLow                or with a lower one than this server needs
    ├── TooManyAttempts               too many failed sign-ins before this one
    ├── NotAllowed                    this principal lacks the role, or may not see the queue
    ├── QueueNotAccepted              this server accepts only the dead-letter queues of its application
    ├── PlanExpired                   a plan that was carried out, or is too old
    │   └── PlanDiffers               a plan of something else, or of a queue that was changed since
    ├── NotEditable                   editing messages is switched off
    ├── NoOutbox                      the server has no application, so no outbox
    ├── TargetUnroutable              the destination of a re-drive does not exist
    └── CrossSite                     a request that another site made the browser send

    From Unauthenticated on they are of the admin API and the console: no command raises them.
    PublishErrors is a group of PublishError, one for each message of a pipeline that failed.

`redrive explain` and docs/reference/errors.md print the docstring of each class: what happened, then *Whose* fault it
is, *Why* it happens and what to *Do*. What a class does not say is as in its base class.
"""

# ruff: noqa: F403, I001 - all of them are public, in the order in which they are documented.
from redrive.errors.base import *
from redrive.errors.topology import *
from redrive.errors.operations import *
from redrive.errors.amqp import *
from redrive.errors.storage import *
from redrive.errors.admin import *
