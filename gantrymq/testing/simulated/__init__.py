"""A cluster in one process, on simulated time and a network in memory that can be made as bad as one likes.

:func:`gantrymq.testing.simulated.run.simulate` runs a scenario: nameservers, brokers and clients on machines of their
own, each with a disk in memory. Nothing waits for real: when nobody can go on, the clock jumps to the next deadline, so
an hour takes seconds. Everything that is left to chance follows from one number, the seed: who runs first, how long a
piece of data takes, which unsynced blocks survive a power cut. The same seed gives the same run.

What is simulated is what surrounds the programs: their sockets, disks, clocks and threads. Work for a worker thread is
done on the spot, so two threads never disturb each other here; real processes are for that.
"""
