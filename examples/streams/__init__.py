"""The demo of topologies: flights by hour and airport, with their planes and the weather."""

from __future__ import annotations
