-- Events that were committed with their invoices, until a relay has published them (`redrive db sql` writes this).
CREATE TABLE IF NOT EXISTS nfe_outbox_event (
    id BIGSERIAL NOT NULL,
    event_id VARCHAR(255) NOT NULL,
    exchange VARCHAR(255) NOT NULL,
    routing_key VARCHAR(255) NOT NULL,
    payload BYTEA NOT NULL,
    properties BYTEA,
    ordering_key VARCHAR(255),
    state SMALLINT DEFAULT 0 NOT NULL,
    attempts INTEGER DEFAULT 0 NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT CURRENT_TIMESTAMP NOT NULL,
    next_attempt_at TIMESTAMP WITH TIME ZONE DEFAULT CURRENT_TIMESTAMP NOT NULL,
    published_at TIMESTAMP WITH TIME ZONE,
    last_error TEXT,
    PRIMARY KEY (id)
);

CREATE INDEX IF NOT EXISTS nfe_outbox_event_due ON nfe_outbox_event (next_attempt_at, id) WHERE state = 0;

CREATE INDEX IF NOT EXISTS nfe_outbox_event_keys ON nfe_outbox_event (ordering_key, id) WHERE state = 0 AND ordering_key IS NOT NULL;

CREATE INDEX IF NOT EXISTS nfe_outbox_event_parked ON nfe_outbox_event (id) WHERE state = 2;

CREATE INDEX IF NOT EXISTS nfe_outbox_event_published ON nfe_outbox_event (published_at) WHERE state = 1;

-- A relay hears of new rows when their transaction has committed.
CREATE OR REPLACE FUNCTION "nfe_outbox_event_notify"() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify('nfe_outbox_event_added', ''); RETURN NULL; END $$;

DROP TRIGGER IF EXISTS "nfe_outbox_event_notify" ON "nfe_outbox_event";

CREATE TRIGGER "nfe_outbox_event_notify" AFTER INSERT ON "nfe_outbox_event" FOR EACH STATEMENT EXECUTE FUNCTION "nfe_outbox_event_notify"();
