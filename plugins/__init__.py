"""Every feature of the broker, one package each. A plugin imports the kernel and never a sibling."""
