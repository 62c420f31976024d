"""Dead-letter queues: look without harm, choose, move without loss.

| module             | what                                                                                      |
|--------------------|-------------------------------------------------------------------------------------------|
| `operation`        | what was asked for, how far it is, how it ended: values                                   |
| `selector`         | is this message meant, may it be moved, and where to                                      |
| `canary`           | how many next, when a step is settled, and when to stop                                   |
| `returns`          | how many of a canary's messages are back, in every dead-letter queue                      |
| `browse`           | list, group and find, over a queue that is held for a moment                              |
| `plan`             | what an operation would do                                                                |
| `runner`           | run an operation: its steps and passes, lost connections, messages moved already          |
| `pipeline`         | one pass: choose, publish, record and ack, in portions                                    |
| `canary_guard`     | watch a step of a canary, and stop it                                                     |
| `control`          | an operation while it runs: its counts, and what others want of it                        |
| `actions`          | what becomes of chosen messages: re-driven, moved, changed, discarded                     |
| `export_format`    | dead letters as lines of JSON, byte-exact                                                 |
| `archive`          | the file that takes what is discarded, before it leaves its queue                         |
| `transforms`       | many messages changed in the same way                                                     |
| `audit_entry`      | an entry of the audit                                                                     |
| `ports`            | what is asked of a broker and of a memory                                                 |
| `audit_log`        | who did what with dead letters, or was not allowed to                                     |
| `dlq_adapter`      | what operations on dead letters ask of a broker, over two connections                     |
| `idempotency_keys` | requests that must not be carried out twice, however often they are sent                  |
| `origins`          | decide which queue a dead letter belongs to                                               |
| `peek_allowance`   | deliveries that looks cost in a queue that counts them                                    |
| `plan_tokens`      | plans that were shown to an operator, until they expire                                   |
| `reconciliation`   | find the dead letters that an operation has already moved and that are in its queue again |
| `repository`       | the memory of operations on dead-letter queues                                            |
"""
