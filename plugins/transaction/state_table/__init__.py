"""The strategy ``state_table``: prepared records stay in their own topic, and a table has their states (RocketMQ 3)."""
