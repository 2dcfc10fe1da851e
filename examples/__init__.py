"""Examples of channels, and the demos: programs that check themselves on real servers."""

from __future__ import annotations
