"""Exports of topics to Parquet files, in a folder or an object store, each message exactly once, with manifests.

``manifest`` has the records and how they add up, ``destination`` what a run needs of the place (``folder_destination``
of a folder, ``object_destination`` of an object store), ``planning`` what a run will write, ``writing`` one task of
it, ``engines`` where tasks run, ``run`` a whole run, ``measuring`` how far it is, ``reading`` the way back. ``tables``
exports to Delta Lake (``delta``) and Iceberg (``iceberg``) instead.
"""
