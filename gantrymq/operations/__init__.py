"""What operators do with a cluster, GantryMQ's or RocketMQ's: consumer groups, dead letters, topics."""
