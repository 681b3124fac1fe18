"""The strategy ``half``: half messages lie in a topic of their own, as in RocketMQ 4 and 5."""
