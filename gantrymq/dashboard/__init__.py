"""The dashboard: pages in the browser and the JSON API behind them, for clusters of GantryMQ and of RocketMQ.

``api`` has the requests, ``views`` what they answer, ``access`` who may ask, ``server`` the web server; ``static`` has
the pages, which load nothing from elsewhere. The work itself is that of the commands (:mod:`gantrymq.operations`).
"""
