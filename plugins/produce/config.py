"""``[plugin.produce]`` of the configuration."""

from __future__ import annotations

import attrs

from gantrymq.kernel.config.fields import plain


@attrs.frozen
class ProduceConfig:
    """Section ``[plugin.produce]``."""

    region: str = "DefaultRegion"
    trace: bool = plain(True, rocketmq="traceOn")
