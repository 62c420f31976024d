"""What a worker tells, in the words of the tools that listen: logs, metrics, traces, health.

| module       | what                                                                                   |
|--------------|----------------------------------------------------------------------------------------|
| `logs`       | a line for each failure, retry, parking, breaker change, reconnect: JSON or a sentence |
| `lines`      | what may stand in a line: no control characters, no secrets, no end                    |
| `prometheus` | counters, gauges and histograms, summed up while messages pass and made at the scrape  |
| `tracing`    | OpenTelemetry spans and links over publish, process, settle and retry                  |
| `http`       | `/metrics`, `/healthz` and `/readyz` on a port of their own                            |
| `dashboards` | a Grafana dashboard and Prometheus alert rules for these metrics                       |

Nothing here knows a broker: observers hear of a worker from `redrive.runtime.observing`.
"""
