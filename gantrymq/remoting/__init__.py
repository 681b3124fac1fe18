"""RocketMQ's remoting protocol for clients and servers.

``frame`` splits the stream into frames, ``command`` reads and writes headers, ``codes`` has the request and response
codes, ``headers`` and ``bodies`` have the typed headers and the JSON bodies by subject, ``properties`` the message
properties, and ``channel`` the calling side of a connection. This package imports no other package of GantryMQ.
"""
