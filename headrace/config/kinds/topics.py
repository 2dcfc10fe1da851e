"""What stands in a channel's ``topics``: names, and patterns that begin with ``^``."""

from __future__ import annotations

import re
import warnings
from typing import Annotated, Any

from headrace.config.expand import Expanded
from headrace.config.kinds.base import refuse
from headrace.config.kinds.text import TOPIC_NAME, Text
from headrace.config.subscription import is_pattern
from headrace.config.wording import printable


class TopicOrPattern(Text):
    """A topic's name, or a pattern: see :class:`headrace.config.subscription.Subscription`."""

    def read(self, value: Any) -> str:
        """Return the name or the pattern."""
        if not (isinstance(value, str) and is_pattern(value)):
            return super().read(value)
        fault = _fault(value)
        if fault is not None:
            raise refuse(f"is not a regular expression that can be used{fault}")
        return str(value)


TopicEntry = Annotated[
    str,
    TopicOrPattern(f"{TOPIC_NAME.wording} or a pattern that begins with '^'", TOPIC_NAME.pattern),
]


def _fault(pattern: str) -> str | None:
    """Return what is wrong with a pattern and where, None if nothing is.

    What Python warns of counts too, because it means something else in another version. Reasons
    may quote the pattern, so none is given for what a reference expands to: it may be a secret.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(pattern)
    except re.error as error:
        reason = error.msg if error.pos is None else f"{error.msg} at position {error.pos}"
    except (OverflowError, RecursionError, Warning) as error:
        reason = str(error)
    else:
        return None
    return "" if isinstance(pattern, Expanded) else f": {printable(reason)}"
