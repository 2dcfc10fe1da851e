"""Records in columns pass the tests of records in lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.channel.test_channel_order import (
    test_a_gap_is_not_committed_after_a_revert_to_before_it,
    test_a_gap_that_later_batches_passed_takes_no_commit_back,
    test_commit_first_processes_no_record_before_its_time,
)
from tests.unit.channel.test_dead_letters import (
    letters,
    test_a_letter_is_the_record_and_says_where_it_comes_from,
    test_a_named_record_is_looked_for_nowhere,
    test_an_operators_skip_takes_a_suspect_out,
    test_offenders_go_to_the_topic_and_everything_else_is_processed,
)
from tests.unit.channel.test_named_records import (
    test_skip_passes_over_a_named_record_alone,
    test_stop_tries_a_named_record_as_often_as_any,
)
from tests.unit.channel.test_seeking import (
    test_a_paused_partition_goes_on_where_it_is_sent,
    test_batches_of_before_a_seek_are_not_delivered_after_it,
)
from tests.unit.channel.test_skips import (
    test_a_batch_of_nothing_else_is_passed_over_in_the_sink_too,
    test_a_poison_record_is_left_out_while_its_batch_backs_off,
)

if TYPE_CHECKING:
    from headrace.testing import InMemoryBroker

__all__ = [
    "letters",
    "test_a_batch_of_nothing_else_is_passed_over_in_the_sink_too",
    "test_a_gap_is_not_committed_after_a_revert_to_before_it",
    "test_a_gap_that_later_batches_passed_takes_no_commit_back",
    "test_a_letter_is_the_record_and_says_where_it_comes_from",
    "test_a_named_record_is_looked_for_nowhere",
    "test_a_paused_partition_goes_on_where_it_is_sent",
    "test_a_poison_record_is_left_out_while_its_batch_backs_off",
    "test_an_operators_skip_takes_a_suspect_out",
    "test_batches_of_before_a_seek_are_not_delivered_after_it",
    "test_commit_first_processes_no_record_before_its_time",
    "test_offenders_go_to_the_topic_and_everything_else_is_processed",
    "test_skip_passes_over_a_named_record_alone",
    "test_stop_tries_a_named_record_as_often_as_any",
]


@pytest.fixture
def broker(broker: InMemoryBroker) -> InMemoryBroker:
    """The broker of the other tests, whose records come in columns."""
    broker.in_columns = True
    return broker
