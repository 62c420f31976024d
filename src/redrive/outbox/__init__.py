"""The transactional outbox and the inbox.

outbox          writes a message into the outbox table, in the application's transaction
repository      claims, retries and prunes the rows
relay           publishes the claimed rows: publish, confirm, mark as sent
listener        wakes the relay: LISTEN/NOTIFY on PostgreSQL, polling on SQLite
inbox           remembers which messages were handled
transactions    handler, inbox row and outgoing messages in one transaction
"""
