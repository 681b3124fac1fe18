"""RocketMQ's remoting protocol, both ends, without a word about brokers.

``frame`` cuts the stream, ``command`` reads and writes headers, ``codes`` are the numbers, ``headers`` and ``bodies``
the typed headers and the JSON bodies by subject, ``properties`` the message properties, ``channel`` the calling side
of a connection. This package imports nothing else of GantryMQ.
"""
