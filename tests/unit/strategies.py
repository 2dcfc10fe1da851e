"""Strategies that several tests draw from."""

from __future__ import annotations

from hypothesis import strategies as st

#: The characters of ``st.text()``, all but surrogates. Hypothesis itself finds them out by encoding
#: each of a million characters, which takes it a second in every checkout without its cache.
CHARACTERS = st.characters(exclude_categories=["Cs"])
