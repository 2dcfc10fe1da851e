"""What all demos have: their servers, daemons and data, how they are driven, and how they end."""

from __future__ import annotations
