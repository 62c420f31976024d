"""What runs on a broker: asyncio, but no sockets and no SQL. The broker is a port (`ports`), so is the database.

| module           | what                                                                                   |
|------------------|----------------------------------------------------------------------------------------|
| `ports`          | what is asked of a broker                                                              |
| `topology_apply` | carry out a plan: make what is missing, touch nothing else                             |
| `batch`          | the messages of one call of a batch handler                                            |
| `batch_consumer` | the batch consumer                                                                     |
| `breakers`       | the breakers of one consumer                                                           |
| `cancellation`   | tell an error that a handler raised from one that ends its task or its process         |
| `clock`          | the time, as an argument                                                               |
| `codecs`         | bodies as values                                                                       |
| `consumer_spec`  | what an application says about a consumer                                              |
| `events`         | what a worker tells about itself                                                       |
| `handlers`       | call a handler                                                                         |
| `invocation`     | call the handler of a consumer                                                         |
| `message`        | a message as its handler sees it                                                       |
| `outage`         | wait for a database that is unavailable, with the messages in hand                     |
| `periodic`       | periodic jobs next to the work                                                         |
| `pipeline`       | the pipeline of a consumer                                                             |
| `publisher`      | publishing for applications                                                            |
| `quarantine`     | the crash guard at work                                                                |
| `settlement`     | perform a verdict                                                                      |
| `transactions`   | one transaction around a message                                                       |
| `transfers`      | move messages to other queues                                                          |
| `worker`         | all the consumers of an application at work, over one connection that consumes and one |
"""
