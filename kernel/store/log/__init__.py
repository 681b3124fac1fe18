"""The commit log: records in files of one size, and how they are scanned, read and written."""
