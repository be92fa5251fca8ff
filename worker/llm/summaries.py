"""How a request for a summary of old turns is told from a turn: a recording keeps the two apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SUMMARY_HEAD = "You sum up the older turns of a coding agent's work."
"""The first line of such a request's system prompt."""


def is_summary(body: Mapping[str, Any]) -> bool:
    """Whether this body of a Chat Completions request asks for a summary."""
    messages = body.get("messages")
    first = messages[0] if isinstance(messages, list) and messages else None
    content = first.get("content") if isinstance(first, dict) else None
    return isinstance(content, str) and content.startswith(SUMMARY_HEAD)
