"""The strategy ``half``: half messages are stored in a separate topic, as in RocketMQ 4 and 5."""
