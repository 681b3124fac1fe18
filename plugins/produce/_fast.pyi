from collections.abc import Mapping
from typing import Any, Final

from gantrymq.plugins.produce.plain import add_sends as add_sends
from gantrymq.plugins.produce.plain import answer_sends as answer_sends

KIND: Final[str]
READERS: Final[Mapping[int, Any]]
