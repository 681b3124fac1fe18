"""Every strategy keeps the contract; and the kit finds one that does not."""

from __future__ import annotations

import pytest

from gantrymq.plugins.transaction.strategies import STRATEGIES
from gantrymq.testing import transactionkit


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("rule", transactionkit.RULES, ids=lambda rule: rule.__name__)
def test_the_contract_of_the_strategies_is_kept(rule: transactionkit.Rule, strategy: str) -> None:
    rule(strategy)
