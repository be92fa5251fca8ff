"""The protocols a profile may choose from; each is a module that is used as a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from worker.llm.messages import Message, ToolSchema
from worker.llm.protocols import fenced, native, xml
from worker.llm.protocols.grammar import Grammar


class ToolProtocol(Protocol):
    """How tools, calls and results travel to a model, and how its text becomes text and calls."""

    def request(
        self, conversation: Sequence[Message], schemas: Sequence[ToolSchema], /, *, echo_reasoning: bool
    ) -> dict[str, Any]:
        """`messages`, and `tools` where the protocol sends them: the part of a request that says all of it."""
        ...

    def grammar(self, schemas: Sequence[ToolSchema], /) -> Grammar:
        """How calls stand in the text of the reply."""
        ...


PROTOCOLS: Mapping[str, ToolProtocol] = {"native": native, "xml": xml, "fenced": fenced}
