"""Other people's tools: what a worker tells, in the words of those that listen, and Redrive within their frameworks.

| module          | what                                                                                   |
|-----------------|----------------------------------------------------------------------------------------|
| `logs`          | a line for each failure, retry, parking, breaker change, reconnect: JSON or a sentence |
| `prometheus`    | counters, gauges and histograms, summed up while messages pass and made at the scrape  |
| `tracing`       | OpenTelemetry spans and links over publish, process, settle and retry                  |
| `health_server` | `/metrics`, `/healthz` and `/readyz` on a port of their own                            |
| `fastapi`       | a lifespan, a publisher and a transaction with outbox for path operations              |
| `celery`        | a Celery application whose tasks wait in the broker and are parked with a record       |
| `monitoring`    | an application as its watchers see it                                                  |
| `dashboards`    | a Grafana dashboard and Prometheus alerts                                              |

Observers know no broker: they get a worker's events from `redrive.worker.events`.
"""
