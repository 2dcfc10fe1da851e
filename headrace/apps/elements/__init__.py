"""Processing elements: a class whose instances are keys, and whose fields are their state.

docs/elements.md is the guide. ``element_reducer`` is a ``factory`` of a keyed channel, and so is
``as_reducer`` of a class.
"""

from __future__ import annotations

from headrace.apps.elements.element import Element, Stream, element_reducer

__all__ = ["Element", "Stream", "element_reducer"]
