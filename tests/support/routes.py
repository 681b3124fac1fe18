"""Wait for routes, which brokers register a moment after a topic was created."""

from __future__ import annotations

import anyio

import gantrymq

PATIENCE_SECONDS = 60


async def wait_routed(client: gantrymq.Client, topic: str) -> None:
    """Wait until the nameserver knows a topic."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while True:
            try:
                await client.admin.route(topic)
                return
            except gantrymq.NoRoute:
                await anyio.sleep(0.02)
