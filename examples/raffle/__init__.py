"""Sign-ups for a raffle: taken over HTTP at once, inserted in batches, whatever happens to the database meanwhile."""
