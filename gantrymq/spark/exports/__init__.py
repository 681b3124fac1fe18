"""Exports of topics to folders of Parquet files, each message exactly once, described by manifests.

``manifest`` has the records and how they add up, ``folder`` the files on disk, ``planning`` what a run will write,
``writing`` one task of it, ``engines`` where tasks run, ``run`` a whole run, ``measuring`` how far it
is, ``reading`` the way back. ``tables`` exports to Delta Lake (``delta``) and Iceberg (``iceberg``) instead.
"""
