"""Dead-letter queues: look without harm, choose, move without loss.

| module         | what                                                                                         |
|----------------|----------------------------------------------------------------------------------------------|
| `operation`    | what was asked for, how far it is, how it ended: values                                      |
| `choosing`     | is this message meant, may it be moved, and where to                                         |
| `canary`       | how many next, when a step is settled, and when to stop                                      |
| `returns`      | how many of a canary's messages are back, in every dead-letter queue                         |
| `looking`      | list, group and find, over a queue that is held for a moment                                 |
| `planning`     | what an operation would do                                                                   |
| `moving`       | run an operation: its steps and passes, lost connections, messages moved already             |
| `pipeline`     | one pass: choose, publish, record and ack, in portions                                       |
| `guard`        | watch a step of a canary, and stop it                                                        |
| `steering`     | an operation while it runs: its counts, and what others want of it                           |
| `acts`         | what becomes of chosen messages: re-driven, moved, changed, discarded                        |
| `letters`      | dead letters as lines of JSON, byte-exact                                                    |
| `archive`      | the file that takes what is discarded, before it leaves its queue                            |
| `transforming` | many messages changed in the same way                                                        |
| `audit`        | an entry of the audit                                                                        |
| `ports`        | what is asked of a broker and of a memory                                                    |
"""
