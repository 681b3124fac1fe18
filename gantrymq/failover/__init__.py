"""Promotion of slaves: by command, or by a watcher that holds a lock when the master is lost.

``brokers`` asks the brokers of a cluster for their state; ``promotion`` has the rules of ``gantrymq cluster promote``.
``lock`` is the interface to a store that has locks with leases, and keeps one; ``etcd`` is the lock in etcd;
``members`` is what a watcher must remember of a broker name; ``watcher`` decides and acts. ``gantrymq cluster watch``.
"""
