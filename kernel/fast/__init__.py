"""The inner loops of the store. ``KIND`` says which of their twins runs; :mod:`.plain` is the reference."""

from __future__ import annotations

from gantrymq.kernel.fast.plain import KIND, Layout, Stop, encode_entries, encode_rows, scan, tag_code, tag_codes

__all__ = ["KIND", "Layout", "Stop", "encode_entries", "encode_rows", "scan", "tag_code", "tag_codes"]
