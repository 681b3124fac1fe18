"""A cluster in one process, with simulated time and a network in memory with configurable faults.

:func:`gantrymq.testing.simulated.run.simulate` runs a scenario: nameservers, brokers and clients on separate machines,
each with a disk in memory. Nothing waits in real time: when no task can run, the clock jumps to the next deadline, so
an hour takes seconds. One number, the seed, determines all random choices: the order of tasks, the delays of data, the
unsynced blocks that survive a power cut. The same seed gives the same run.

The simulation replaces the sockets, disks, clocks and threads of the programs. It runs the work of worker threads
immediately, so it finds no races between threads; test those with real processes.
"""
