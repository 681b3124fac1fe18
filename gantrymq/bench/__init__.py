"""The load generator behind ``gantrymq bench`` and ``make bench``: any broker that speaks RocketMQ's protocol.

``plan`` says what to do, ``frames`` encodes the requests before the clock starts, ``sending`` and ``pulling`` are the
two loads, ``worker`` drives them with one epoll in a process of its own, ``running`` starts the workers and adds up
what they measured, ``cluster`` asks a nameserver where the queues are.
"""
