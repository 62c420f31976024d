"""Bytes <-> values: AMQP 0-9-1 field tables, methods, properties and frames.

Nothing here remembers anything: who may say what, and when, is `redrive.protocol`.

| module           | AMQP 0-9-1 section | what                                                         |
|------------------|--------------------|--------------------------------------------------------------|
| `values`         | 4.2.5              | short strings, field values, field tables                    |
| `argument_types` | 4.2.5              | the types of argument a method can have                      |
| `method`         | 4.2.4              | the declaration of a method, compiled to a codec             |
| `methods`        | 1.3 to 1.8         | one file per AMQP class, one declaration per method          |
| `properties`     | 4.2.6.1            | the 14 properties of a message                               |
| `property_scan`  | 4.2.6.1            | all properties in one pass, not decoded                      |
| `raw_properties` | 4.2.6.1            | encoded properties, read and changed in place                |
| `frames`         | 4.2.3              | frames, content split by frame-max, and the hot-path writers |
"""
