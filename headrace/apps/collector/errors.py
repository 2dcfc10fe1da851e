"""The error for events that the collector refuses."""

from __future__ import annotations


class EventRefusedError(ValueError):
    """An event, or its JSON, cannot be taken. The text is what the rejection says.

    In mode ``compat`` it is the text of the original, or of Go.
    """
