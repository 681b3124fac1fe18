"""Section ``[plugin.register]``."""

from __future__ import annotations

import attrs

from gantrymq.kernel.config.fields import duration


@attrs.frozen(kw_only=True)
class RegisterConfig:
    """Interval and time-out of registrations. The addresses are ``broker.nameservers``."""

    interval: float = duration("30s", minimum="1s", maximum="60s")
    """Nameservers remove a broker after 120 s (RocketMQ's registerNameServerPeriod)."""
    timeout: float = duration("6s", minimum="100ms", maximum="60s")
    """How long a nameserver may take to respond (registerBrokerTimeoutMills)."""
