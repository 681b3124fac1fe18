"""The test library for programs that use GantryMQ and for plugins: fixtures, environments with faults, simulated
clusters, conformance rules, and a ledger of messages."""
