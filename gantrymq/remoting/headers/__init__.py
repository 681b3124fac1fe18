"""The typed headers of requests and responses by subject; ``table`` ties them to the request codes."""
