"""Doubles and builders for tests of reducers, processors and channels."""

from __future__ import annotations
