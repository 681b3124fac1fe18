"""Errors of ours that a user sees: each says what is wrong and what to do."""

from __future__ import annotations


class StartError(Exception):
    """The broker cannot start as it is configured; the text names the culprit and the remedy."""


class PluginError(Exception):
    """A plugin raised where only a refusal is allowed: a bug that stops the broker, named by plugin and hook."""
