"""Changes of what all channels share: ZooKeeper, Kafka, Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.controller.reports import ReloadOutcome
from headrace.core.errors import FatalError, StartError
from headrace.kafka.errors import KafkaUnavailableError
from headrace.zookeeper.errors import ZooKeeperUnavailableError
from tests.unit.channel.in_memory import eventually
from tests.unit.controller.world import delivers

if TYPE_CHECKING:
    from tests.unit.controller.world import World


def test_another_zookeeper_takes_all_channels_along(world: World) -> None:
    """They drain, and go on in the new session; changes of channels come with it."""
    delivers(world)
    former = world.controller.session
    world.channel(workers=3)
    world.channel("more")
    world.write(zookeeper={"hosts": ["other:2181"]})
    assert world.reload().outcome is ReloadOutcome.APPLIED
    assert former.closed  # type: ignore[attr-defined]  # the double says it
    assert world.recorders["main"][0].names(0)[-1] == "terminated"
    delivers(world)
    delivers(world, "more")


def test_servers_that_cannot_be_reached_leave_all_as_it_is(world: World) -> None:
    """No channel is drained for an unreachable ZooKeeper, and the connection is tried again."""
    world.broken["new zookeeper"] = ZooKeeperUnavailableError("nobody there")
    world.write(zookeeper={"hosts": ["other:2181"]})
    world.channel(workers=3)
    assert world.reload().outcome is ReloadOutcome.PARTLY
    assert set(world.pending().values()) == {"nobody there"}
    assert "terminated" not in world.recorder().names(0)
    delivers(world)
    world.broken.clear()
    eventually(lambda: not world.pending())
    assert world.controller.channels["main"].config.workers == 3


def test_a_channel_that_does_not_start_after_connecting_again_holds_up_no_other(
    world: World,
) -> None:
    """The connection is applied, and the channel alone is pending."""
    world.channel("more")
    world.reload()
    world.broken["channel more more"] = StartError("no luck")
    world.write(kafka={"bootstrap_servers": ["other:9092"]})
    assert world.reload().outcome is ReloadOutcome.PARTLY
    assert world.pending() == {"channels.more": "no luck"}
    delivers(world)


def test_spark_is_built_again_between_micro_batches(world: World) -> None:
    """A micro-batch that runs for long has it tried again; one that fails is pending."""
    world.broken["spark is busy"] = StartError("")
    world.write(spark={"warm_up": 0})
    world.reload()
    assert "a micro-batch runs" in world.pending()["spark.warm_up"]
    world.broken.clear()
    eventually(lambda: not world.pending())
    world.broken["spark"] = StartError("no such master")
    world.write(spark={"master": "nowhere"})
    world.reload()
    assert world.pending()["spark.master"] == "no such master"
    delivers(world)


def test_a_session_is_made_for_all_channels_that_share_it(world: World) -> None:
    """The first one, and one that is built anew when there are more channels."""
    spark = {"processor": {"type": "spark", "reducer": "jobs:reduce"}, "sink": "noop"}
    world.channel("main", **spark)
    world.channel("more", **spark)
    assert world.reload().outcome is ReloadOutcome.APPLIED
    session: Any = world.controller._spark_session()
    assert session.settings.channels == 2
    world.channel("third", **spark)
    world.write(spark={"warm_up": 0})
    assert world.reload().outcome is ReloadOutcome.APPLIED
    assert world.controller.spark_settings[-1].channels == 3


def test_a_channel_that_goes_with_the_connection_takes_its_metrics_along(world: World) -> None:
    """A channel that was removed while it was paused has no metrics."""
    world.channel("more")
    world.reload()
    world.controller.channels["more"].pause(by="ann")
    world.without("more")
    world.write(kafka={"bootstrap_servers": ["other:9092"]})
    assert world.reload().outcome is ReloadOutcome.APPLIED
    samples = [s for m in world.controller.metrics.paused_since.collect() for s in m.samples]
    assert {sample.labels["channel"] for sample in samples} == {"main"}


def test_an_added_channel_that_does_not_start_with_the_connection_is_pending(
    world: World,
) -> None:
    """It is none of those that run, and it starts as soon as it can."""
    world.broken["channel more more"] = KafkaUnavailableError("no luck")
    world.channel("more")
    world.write(kafka={"bootstrap_servers": ["other:9092"]})
    assert world.reload().outcome is ReloadOutcome.PARTLY
    assert world.pending() == {"channels.more": "no luck"}
    world.broken.clear()
    eventually(lambda: not world.pending())
    delivers(world, "more")


def test_no_session_at_all_asks_for_a_new_process(world: World) -> None:
    """Without the new servers and the former ones no channel runs, so the process ends."""
    world.write(zookeeper={"hosts": ["other:2181"]})
    world.broken["zookeeper"] = StartError("denied")
    world.reload()
    failure = world.controller.wait(5.0)
    assert isinstance(failure, FatalError)
    assert "no ZooKeeper session" in str(failure)


def test_spark_learns_of_another_address_for_tokens(world: World) -> None:
    """The session is built again for another address, and stays for another secret."""
    world.channel("main", processor={"type": "spark", "reducer": "jobs:reduce"}, sink="noop")
    assert world.reload().outcome is ReloadOutcome.APPLIED
    world.controller._spark_session()
    login = {"token_url": "http://one/token", "client_id": "a", "client_secret": "b"}
    world.write(kafka={"oauth": login})
    assert world.reload().outcome is ReloadOutcome.APPLIED
    (settings,) = world.controller.spark_settings
    options = settings.properties["spark.executor.extraJavaOptions"]
    assert options.endswith("allowed.urls=http://one/token")
    world.write(kafka={"oauth": {**login, "client_secret": "c"}})
    assert world.reload().outcome is ReloadOutcome.APPLIED
    assert len(world.controller.spark_settings) == 1
    delivers(world)


def test_processors_have_the_login_that_channels_connect_with(world: World) -> None:
    """Sinks and readers by reference log in as the new section says, and not as the former one."""
    login = {"token_url": "http://one/token", "client_id": "a", "client_secret": "b"}
    world.write(kafka={"oauth": login})
    assert world.reload().outcome is ReloadOutcome.APPLIED
    assert world.connected["main"] == world.controller.config.kafka
    assert world.connected["main"].oauth is not None


def test_channels_go_on_where_spark_cannot_be_told_of_an_address(world: World) -> None:
    """They run with the former login, the change is pending, and is tried again."""
    world.channel("main", processor={"type": "spark", "reducer": "jobs:reduce"}, sink="noop")
    world.reload()
    world.controller._spark_session()
    world.broken["spark"] = StartError("no JVM")
    login = {"token_url": "http://one/token", "client_id": "a", "client_secret": "b"}
    world.write(kafka={"oauth": login})
    world.reload()
    assert set(world.pending().values()) == {"no JVM"}
    assert world.controller.config.kafka.oauth is None
    delivers(world)
    world.broken.clear()
    world.reload()
    assert not world.pending()
    assert world.controller.config.kafka.oauth is not None
    delivers(world)
