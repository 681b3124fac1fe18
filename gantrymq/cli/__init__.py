"""The command line: ``gantrymq`` and ``python -m gantrymq.cli``.

``__main__`` is the entry point. ``group`` finds a command by its name without importing the others, to start quickly.
``failures`` reports each expected error with one line and an exit code. Data, banner and ``ready`` go to stdout, logs
and errors to stderr.
"""
