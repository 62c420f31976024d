"""The queues: `video` leads to `video_tasks`, `video-retry` to the queues in which tasks wait, `video-dlx` to the dead.

    API, Celery ─ video [video] ─> video_tasks ─ rejected, or failed for good ─ video-dlx [video.dlq] ─> video_dlq
                                       │
                    the attempt says ──┴─ video-retry ─> video_retry_30s, _60s, _2m, _10m ─ TTL ─ video [video] ─> again

`video_retry_60s` has no dead-letter key: a message returns with the key it was published with. That is `video` through
the exchange `video-retry`, and `video_retry_60s` for a message published to the queue by its name. `video_tasks` is
bound to `video` by both keys, so both return. The other retry queues have the dead-letter key `video`.
"""

from examples.video import settings
from redrive import Exchange, Naming, Queue, Retry, Topology

video = Exchange("video", "direct")
naming = Naming(
    retry_exchange="video-retry",
    rung_queue="video_retry_{delay}",
    rung_key="video.retry.{delay}",
    back_exchange="video",
    back_key="video",
    dlq_exchange="video-dlx",
    dlq_queue="video_dlq",
    dlq_key="video.dlq",
    rungs={settings.WAITS[1]: {"key": "video", "back_key": ""}},
)
topology = Topology(
    [video], [Queue("video_tasks", video.on("video"), retry=Retry(steps=settings.WAITS))], naming=naming
)
