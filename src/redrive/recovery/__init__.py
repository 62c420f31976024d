"""Pure decisions about failure: when to try again, and when not to."""
