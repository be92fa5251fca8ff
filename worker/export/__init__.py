"""The way out: a task's change set in, a proven patch out (docs/patch.md)."""

from worker.export.export import export
from worker.export.limits import ExportLimits

__all__ = ["ExportLimits", "export"]
