"""The typed headers of requests and responses by subject; ``table`` lists them by request code."""
