"""A bare echo server on one epoll: the upper limit of what the load generator can measure."""

from __future__ import annotations

import select
import socket


def main() -> None:
    """Print the port, then echo until the process is killed."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    epoll = select.epoll()
    epoll.register(listener, select.EPOLLIN)
    connections: dict[int, socket.socket] = {}
    while True:
        for fd, _ in epoll.poll():
            if fd == listener.fileno():
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections[connection.fileno()] = connection
                epoll.register(connection, select.EPOLLIN)
                continue
            connection = connections[fd]
            try:
                data = connection.recv(65_536)
                connection.sendall(data)
            except OSError:
                data = b""
            if not data:
                epoll.unregister(fd)
                connections.pop(fd).close()


if __name__ == "__main__":
    main()
