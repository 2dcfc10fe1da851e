"""The processing of batches: the contract, and the processors that come with Headrace."""

from __future__ import annotations

from headrace.processors.contract import (
    BatchProcessor,
    BatchResponse,
    ChannelContext,
    PauseControl,
    Request,
)

__all__ = ["BatchProcessor", "BatchResponse", "ChannelContext", "PauseControl", "Request"]
