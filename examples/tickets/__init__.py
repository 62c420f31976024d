"""Support tickets: an API, an outbox, a worker that asks a help desk over HTTP, and an audit in batches."""
