"""The commit log: records in files of one size, scanned, read and written behind."""
