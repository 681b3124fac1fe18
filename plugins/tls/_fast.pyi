from typing import Final

from gantrymq.plugins.tls.plain import RecordLayer as RecordLayer

KIND: Final[str]
