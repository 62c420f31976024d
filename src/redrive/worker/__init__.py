"""What runs on a broker: asyncio, but no sockets and no SQL. The broker is a port (`ports`), so is the database.

| module         | what                                                            |
|----------------|-----------------------------------------------------------------|
| `ports`        | what is asked of a broker                                       |
| `provisioning` | carry out a plan: make what is missing, touch nothing else      |
| `migration`    | give a queue other arguments without losing what is in it       |
"""
