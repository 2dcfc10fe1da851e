"""The demo of workflows: the turnaround of an aircraft."""

from __future__ import annotations
