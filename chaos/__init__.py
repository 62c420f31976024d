"""The same work and the same faults, for Redrive and for what people use instead.

    python -m chaos                                     everything: hours
    python -m chaos --system redrive --fault kill-broker --broker embedded
    python -m chaos.soak                                half an hour of any fault, and nothing may grow

| module       | what                                                                                          |
|--------------|-----------------------------------------------------------------------------------------------|
| `work`       | what is to be done: numbered orders, most of which succeed, and where that is written down      |
| `systems/`   | who does it: one program for each system, with the settings that its manual recommends          |
| `brokers`    | on what: the embedded broker, RabbitMQ in two versions, a cluster of three                       |
| `faults`     | what happens meanwhile, one class each                                                         |
| `partition`  | one of them in detail: a network between nodes that loses every packet                           |
| `scene`      | one run: a producer, two workers, a few strikes of one fault, and the end                       |
| `accounting` | what is lost, doubled, stuck: number by number, pure                                            |
| `soak`       | one long run, with every fault in turn, and two processes that are watched                       |
| `report`     | the runs as JSON, and the table of docs/reliability.md                                          |

A number is *confirmed* when the system's own publisher said so without an error. It is *lost* if afterwards it was
neither done nor parked and is in no queue either; *stuck* if it is still in a queue where nobody takes it; *doubled* if
its effect happened more than once.
"""
