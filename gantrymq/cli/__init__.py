"""The command line: ``gantrymq`` and ``python -m gantrymq.cli``.

``__main__`` is the way in, ``group`` finds a command by its name without importing the others (a start must be quick),
``failures`` turns every foreseeable error into one line and an exit code. Data, banner and ``ready`` go to stdout, logs
and errors to stderr.
"""
