"""What changefeeds send: over HTTP, and as files in a folder or bucket."""
