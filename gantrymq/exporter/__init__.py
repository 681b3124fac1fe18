"""The process beside a broker that exports its topics for the plugin ``exporter``.

``job`` is what both sides know, ``process`` the broker's side, ``worker`` the program.
"""
