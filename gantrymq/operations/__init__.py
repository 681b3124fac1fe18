"""Operations on a cluster of GantryMQ or RocketMQ, for the command line and the dashboard."""
