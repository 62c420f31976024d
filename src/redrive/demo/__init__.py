"""`redrive demo`: the product at work, with nothing installed but itself.

| module      | what                                                                                    |
|-------------|-----------------------------------------------------------------------------------------|
| `pipeline`  | the application: pictures go through seven queues, and some of them fail                |
| `catalogue` | a service that the application depends on, which is sometimes unavailable               |
| `ledger`    | what was published, and the outcome of each message                                     |
| `scenario`  | the scenario: traffic, outages, counters, and for `--once` a bounded run with a summary |
| `web`       | the console of the demo                                                                 |
"""
