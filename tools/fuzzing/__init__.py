"""The parts of `tools/fuzz.py`.

| module          | what                                                                                    |
|-----------------|-----------------------------------------------------------------------------------------|
| `families`      | what there is, by the names under which it is chosen                                     |
| `targets`       | what a target is                                                                         |
| `conversations` | a conversation of either side in several states, and the lazy decoders                   |
| `queries`       | the language of searches                                                                 |
| `bodies`        | what handlers get of bodies, and people see of them                                      |
| `definitions`   | definitions.json, TOML and YAML                                                          |
| `listening`     | a broker as a process                                                                    |
| `deliveries`    | a worker at work, and everything that operators have; `hostile` makes its messages       |
| `rest`          | `redrive serve` as a process                                                             |
| `playing`       | the application behind a conversation: it answers, and looks at everything it is given   |
| `mutation`      | inputs from inputs, knowing what a frame, a length and a field table are                 |
| `corpus`        | inputs on disk, and how the first of them are made                                      |
"""
