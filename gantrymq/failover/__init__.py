"""Automatic promotion: a watcher that holds a lock promotes a slave when the master is lost.

``lock`` is the interface to a store that has locks with leases, and keeps one; ``etcd`` is the lock in etcd;
``members`` is what a watcher must remember of a broker name; ``watcher`` decides and acts. ``gantrymq cluster watch``.
"""
