"""Operating dead letters: one service, and the faces that people use it through.

| module     | what                                                                                             |
|------------|--------------------------------------------------------------------------------------------------|
| `place`    | a broker with what is known about it: topology, management API, where operations are remembered  |
| `access`   | who may come in, and what they may do there                                                      |
| `service`  | look, plan, re-drive, discard, steer: everything the faces can do                                |
"""
