"""The strategy ``state_table``: prepared messages stay where they are, and a table has their states (RocketMQ 3)."""
