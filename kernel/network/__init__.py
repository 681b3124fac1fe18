"""The broker's sockets: connections, and the way of a request to the processor that answers it."""
