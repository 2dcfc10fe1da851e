"""The demo of the collector: flights as groups of events."""

from __future__ import annotations
