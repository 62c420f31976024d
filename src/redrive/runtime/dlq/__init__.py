"""Dead-letter queues: look without harm, choose, move without loss.

| module        | what                                                                                          |
|---------------|-----------------------------------------------------------------------------------------------|
| `operation`   | what was asked for, how far it is, how it ended: values                                       |
| `choosing`    | is this message meant, may it be moved, and where to                                          |
| `canary`      | how many next, and when to stop                                                               |
| `looking`     | list, group and find, over a queue that is held for a moment                                  |
| `planning`    | what an operation would do                                                                    |
| `moving`      | do it: take, publish, confirm, ack                                                            |
| `ports`       | what is asked of a broker and of a memory                                                     |
"""
