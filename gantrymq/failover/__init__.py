"""Promotion of slaves: by command, or by a watcher that holds a lock when the master is lost.

``brokers`` requests the state of a cluster's brokers; ``promotion`` implements ``gantrymq cluster promote``.
``lock`` is the interface to a store of locks with leases, and holds one; ``etcd`` is the lock in etcd;
``members`` is what a watcher persists about a broker name; ``watcher`` implements ``gantrymq cluster watch``.
"""
