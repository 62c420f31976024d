"""`redrive demo`: the product at work, with nothing installed but itself.

| module      | what                                                                                   |
|-------------|----------------------------------------------------------------------------------------|
| `pipeline`  | the application: pictures go through seven queues, and some of them fail                |
| `png`       | pictures, in as much PNG as is needed to make, check and shrink them                    |
| `catalogue` | a service that the pipeline depends on, which is sometimes away                         |
| `books`     | what was published and what became of it, message by message                            |
| `show`      | all of it together: traffic, outages, counters, and for `--once` the end of the story   |
"""
