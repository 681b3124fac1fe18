"""The broker's sockets: connections, and the path of a request to its processor."""
