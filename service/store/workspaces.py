"""Accepted uploads: the same bytes in the same team are one workspace."""

from __future__ import annotations

from service.contracts import Workspace
from service.store.connection import Connection


class Workspaces(Connection):
    """Workspace records; kept for the retention time after their last use."""

    def put_workspace(self, workspace: Workspace) -> Workspace:
        """Stores it, or gives the team's earlier one of the same upload."""
        record = self._script("workspace", workspace.team, workspace.id, workspace.sha256, workspace.model_dump_json())
        return Workspace.model_validate_json(record)

    def workspace(self, team: str, workspace_id: str) -> Workspace | None:
        """The team's workspace; None when it has none of this id."""
        record = self._call("GET", self._key("ws", team, workspace_id))
        return Workspace.model_validate_json(record) if record is not None else None
