"""Dead-letter queues: look without harm, choose, move without loss.

| module         | what                                                                                          |
|----------------|-----------------------------------------------------------------------------------------------|
| `operation`    | what was asked for, how far it is, how it ended: values                                       |
| `choosing`     | is this message meant, may it be moved, and where to                                          |
| `canary`       | how many next, and when to stop                                                               |
| `looking`      | list, group and find, over a queue that is held for a moment                                  |
| `planning`     | what an operation would do                                                                    |
| `moving`       | do it: take, publish, confirm, ack                                                            |
| `letters`      | dead letters as lines of JSON, and back byte for byte                                         |
| `archive`      | the file that takes what is discarded, before it is acked                                     |
| `transforming` | many messages changed in the same way, each as a whole or not at all                          |
| `notifying`    | whom to tell of new dead letters, when, and how often                                         |
| `ports`        | what is asked of a broker and of a memory                                                     |
"""
