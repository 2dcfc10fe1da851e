"""Processing elements: a class whose instances are keys, and whose fields are their state.

docs/elements.md is the guide. An ``App`` connects elements by streams; ``element_reducer`` is a
``factory`` of a keyed channel, and so is ``as_reducer`` of a class.
"""

from __future__ import annotations

from headrace.apps.elements.adapter import AdapterApp
from headrace.apps.elements.app import App, Prototype
from headrace.apps.elements.element import SAME_KEY, Element, Stream, element_reducer
from headrace.apps.elements.part_reducer import app_reducer, key_function, relay_reducer

__all__ = [
    "SAME_KEY",
    "AdapterApp",
    "App",
    "Element",
    "Prototype",
    "Stream",
    "app_reducer",
    "element_reducer",
    "key_function",
    "relay_reducer",
]
