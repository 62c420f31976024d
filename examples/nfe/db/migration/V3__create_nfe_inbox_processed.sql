-- Which events each consumer has processed: the key is what makes a second time impossible.
CREATE TABLE IF NOT EXISTS nfe_inbox_processed (
    consumer VARCHAR(255) NOT NULL,
    event_id VARCHAR(255) NOT NULL,
    processed_at TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (consumer, event_id)
);

CREATE INDEX IF NOT EXISTS nfe_inbox_processed_processed_at ON nfe_inbox_processed (processed_at);
