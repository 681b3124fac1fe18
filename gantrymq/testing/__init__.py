"""What tests of GantryMQ, and of plugins for it, share: environments that fail, real processes, a message ledger."""
