"""The JSON bodies of requests and responses, and of RocketMQ's configuration files, by subject.

Defaults are those of the Java classes, which is what a missing key means.
"""
