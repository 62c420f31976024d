"""Files uploaded over HTTP, and seven consumers that look after them."""
