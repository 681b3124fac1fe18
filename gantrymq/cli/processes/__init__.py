"""``--processes N``: several brokers of one machine as one unit (``docs/howto/processes.md``).

``layout`` derives names, ports and folders; ``link`` connects a broker with the parent; ``unit`` starts, restarts and
stops the brokers; ``pages`` serves the health and the metrics of all; ``exposition`` merges the metrics.
"""
