"""The demo: the main job on real data, with a daemon killed in between, and checked.

Kept free of imports: the daemons import the reducer from this package.
"""

from __future__ import annotations
