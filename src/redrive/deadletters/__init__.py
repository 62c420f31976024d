"""Dead letters as values, without I/O: read one, its timeline, search, body preview, redaction, edits."""
