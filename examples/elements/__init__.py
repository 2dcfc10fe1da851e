"""The demo of processing elements: flights counted by their destination."""

from __future__ import annotations
