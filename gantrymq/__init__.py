"""GantryMQ: a message broker as a microkernel that speaks RocketMQ's protocol and keeps RocketMQ's files."""
