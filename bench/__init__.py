"""Redrive beside its peers, on one private RabbitMQ, in one run: `python -m bench`, `python -m bench.workers`.

See README.md.

| module      | what                                                                       |
|-------------|----------------------------------------------------------------------------|
| `contract`  | what a peer, a scenario and a measurement are                              |
| `catalogue` | finds the peers and scenarios: one file each in `peers/` and `scenarios/`  |
| `messages`  | the job of the scenarios that move messages                                |
| `handling`  | the job of the scenario about whole workers                                |
| `inserting` | the job of the scenario about batches and a database                       |
| `broker`    | the private node they all use, and the chores around a measurement         |
| `workplace` | the same for workers, and a private PostgreSQL                             |
| `choosing`  | whom `--only` names                                                        |
| `run`       | plans, calibrates and runs measurements, each in an interpreter of its own |
| `child`     | that interpreter                                                           |
| `results`   | what was measured: saved, loaded, summed up                                |
| `goals`     | what Redrive set out to reach, and whether it did                          |
| `report`    | tables for a terminal and for Markdown                                     |
| `plot`      | the picture                                                                |
| `outbox`    | a run of its own: what outbox and inbox cost                               |
"""
