"""Bytes <-> values: AMQP 0-9-1 field tables, methods, properties and frames.

Nothing here remembers anything: who may say what, and when, is `redrive.protocol`.

| module       | AMQP 0-9-1 section | what                                                        |
|--------------|--------------------|-------------------------------------------------------------|
| `values`     | 4.2.5              | short strings, field values, field tables                   |
| `fields`     | 4.2.5              | the kinds of argument a method can have                     |
| `method`     | 4.2.4              | the declaration of a method, compiled to a codec            |
| `methods/`   | 1.3 to 1.8         | one file per AMQP class, one declaration per method         |
| `properties` | 4.2.6.1            | the 14 properties of a message                              |
| `frames`     | 4.2.3              | frames, content split by frame-max, and the hot-path writers |
"""
