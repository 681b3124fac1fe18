from typing import Final

from gantrymq.plugins.transaction.plain import add_ends as add_ends
from gantrymq.plugins.transaction.plain import close_ends as close_ends
from gantrymq.plugins.transaction.plain import divert_rows as divert_rows
from gantrymq.plugins.transaction.plain import half_rows as half_rows
from gantrymq.plugins.transaction.plain import match_records as match_records
from gantrymq.plugins.transaction.plain import read_endings as read_endings
from gantrymq.plugins.transaction.plain import split_named as split_named

KIND: Final[str]
