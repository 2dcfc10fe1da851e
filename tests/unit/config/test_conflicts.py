from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from headrace.config import ChannelConfig, KafkaConfig, ZooKeeperConfig
from headrace.extensions.spark.section import SparkProcessorConfig
from tests.unit.config.support import CHANNELS, channel, loaded, refused

if TYPE_CHECKING:
    from pathlib import Path

COMMITS = (
    "is Headrace's own: only what a processor answered is committed; "
    "use commit_interval of the channel"
)
MEMBERSHIP = (
    "is Headrace's own: partitions are assigned through ZooKeeper; use coordinator of the channel"
)
IN_FLIGHT = (
    "is Headrace's own: with more than one request of a producer in flight, records can be lost "
    "without an error; leave it out"
)
CALLBACK = "is a callback, which a file cannot hold; leave it out"
LOGIN = "{mechanism: PLAIN, username: a, password: b}"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("bootstrap.servers", "is Headrace's own; use kafka.bootstrap_servers"),
        ("metadata.broker.list", "is Headrace's own; use kafka.bootstrap_servers"),
        ("group.id", "is Headrace's own, one for each channel; use group of the channel"),
        ("group.instance.id", MEMBERSHIP),
        ("group.protocol", MEMBERSHIP),
        ("group.remote.assignor", MEMBERSHIP),
        ("partition.assignment.strategy", MEMBERSHIP),
        ("enable.auto.commit", COMMITS),
        ("auto.commit.enable", COMMITS),
        ("auto.commit.interval.ms", COMMITS),
        ("enable.auto.offset.store", COMMITS),
        (
            "auto.offset.reset",
            "is Headrace's own; use initial_offset and offset_out_of_range of the channel",
        ),
        (
            "enable.partition.eof",
            (
                "is Headrace's own: it shows where a partition ends after transaction markers; "
                "leave it out"
            ),
        ),
        ("max.in.flight.requests.per.connection", IN_FLIGHT),
        ("max.in.flight", IN_FLIGHT),
        ("transactional.id", "is Headrace's own: it names its transactions itself; leave it out"),
        ("default.topic.config", "is obsolete; set the topic's properties here directly"),
        ("on_commit", CALLBACK),
        ("error_cb", CALLBACK),
        ("stats_cb", CALLBACK),
        ("logger", CALLBACK),
    ],
)
def test_properties_that_headrace_owns_are_refused(
    tmp_path: Path, name: str, sentence: str
) -> None:
    """A librdkafka property that Headrace sets itself is refused with reason and right field."""
    text = f"kafka:\n  properties:\n    {name}: 1{CHANNELS}"
    assert refused(tmp_path, text) == [f"kafka.properties.{name} (line 3): {sentence}"]


@pytest.mark.parametrize(
    ("sections", "name", "sentence"),
    [
        (
            "tls: {}",
            "security.protocol",
            "contradicts kafka.tls, kafka.sasl and kafka.oauth, which say it; leave it out",
        ),
        (
            f"sasl: {LOGIN}",
            "security.protocol",
            "contradicts kafka.tls, kafka.sasl and kafka.oauth, which say it; leave it out",
        ),
        ("tls: {}", "ssl.ca.location", "is said by kafka.tls; use kafka.tls.ca_file"),
        ("tls: {}", "ssl.key.password", "is said by kafka.tls; use kafka.tls.key_password"),
        (
            "tls: {}",
            "ssl.endpoint.identification.algorithm",
            "is said by kafka.tls; use kafka.tls.verify_hostname",
        ),
        (
            "tls: {}",
            "sasl.mechanism",
            (
                "is of SASL, which a connection with kafka.tls alone has not; add kafka.sasl or "
                "kafka.oauth, or leave kafka.tls out and say all with properties"
            ),
        ),
        (f"sasl: {LOGIN}", "sasl.mechanisms", "is said by kafka.sasl; use kafka.sasl.mechanism"),
        (f"sasl: {LOGIN}", "sasl.password", "is said by kafka.sasl; use kafka.sasl.password"),
        (
            f"sasl: {LOGIN}",
            "ssl.cipher.suites",
            "is of TLS, which a connection with kafka.sasl alone has not; add kafka.tls",
        ),
    ],
)
def test_security_is_said_once(tmp_path: Path, sections: str, name: str, sentence: str) -> None:
    """A property that says again, or otherwise, what tls and sasl say is refused."""
    text = f"kafka:\n  {sections}\n  properties:\n    {name}: x{CHANNELS}"
    assert refused(tmp_path, text) == [f"kafka.properties.{name} (line 4): {sentence}"]


@pytest.mark.parametrize(
    "values",
    [
        {"properties": {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}},
        {"properties": {"ssl.ca.location": "ca.pem"}},
        {"tls": {}, "properties": {"ssl.cipher.suites": "x", "fetch.min.bytes": 1}},
        {
            "sasl": {"mechanism": "PLAIN", "username": "a", "password": "b"},
            "properties": {"sasl.login.retry": 1},
        },
    ],
)
def test_other_properties_are_free(values: dict[str, Any]) -> None:
    """Any property is taken as long as tls and sasl do not say it."""
    assert KafkaConfig.model_validate(values).properties == values["properties"]


@pytest.mark.parametrize(
    ("tls", "problem"),
    [
        ("certificate_file: a", "certificate_file (line 3): needs key_file, its private key"),
        ("key_file: a", "key_file (line 3): needs certificate_file, which it is the key of"),
        ("key_password: a", "key_password (line 3): needs key_file, which it is the password of"),
    ],
)
@pytest.mark.parametrize("section", ["kafka", "zookeeper"])
def test_halves_of_a_certificate_are_refused(
    tmp_path: Path, section: str, tls: str, problem: str
) -> None:
    """A certificate needs its key, and a password its key file, for Kafka and ZooKeeper alike."""
    text = f"{section}:\n  tls:\n    {tls}{CHANNELS}"
    assert refused(tmp_path, text) == [f"{section}.tls.{problem}"]


def test_acls_need_an_identity(tmp_path: Path) -> None:
    """Nodes cannot belong to their creator when the servers do not learn who that is."""
    assert refused(tmp_path, f"zookeeper: {{acl: creator}}{CHANNELS}") == [
        (
            "zookeeper.acl (line 1): is creator, which needs an identity; "
            "add zookeeper.sasl, zookeeper.digest or a certificate in zookeeper.tls"
        )
    ]


def test_nodes_are_closed_where_a_user_is_given() -> None:
    """The default closes nodes to all but the user; certificates may differ between members."""
    user = {"username": "a", "password": "b"}
    given: list[dict[str, Any]] = [
        {"digest": user},
        {"sasl": user},
        {"tls": {"certificate_file": "a", "key_file": "b"}},
        {"digest": user, "acl": "open"},
        {},
    ]
    assert [ZooKeeperConfig.model_validate(each).node_acl for each in given] == [
        "creator",
        "creator",
        "open",
        "open",
        "open",
    ]


@pytest.mark.parametrize(
    "identity",
    [
        {"digest": {"username": "a", "password": "b"}},
        {"sasl": {"username": "a", "password": "b"}},
        {"tls": {"certificate_file": "a", "key_file": "b"}},
    ],
)
@pytest.mark.parametrize("acl", ["creator", "creator-read-world"])
def test_each_identity_will_do(identity: dict[str, Any], acl: str) -> None:
    """A digest, SASL or a certificate is identity enough for either ACL."""
    assert ZooKeeperConfig.model_validate(identity | {"acl": acl}).has_identity


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("spark.master", "is said by spark.master; use that field"),
        ("spark.app.name", "is said by spark.app_name; use that field"),
        ("spark.driver.memory", "is said by spark.driver_memory; use that field"),
        ("master", "does not begin with 'spark.'"),
    ],
)
def test_spark_properties_do_not_repeat_fields(tmp_path: Path, name: str, sentence: str) -> None:
    """A Spark property that has a field of its own, or another name space, is refused."""
    text = f"spark:\n  properties:\n    {name}: x{CHANNELS}"
    assert refused(tmp_path, text) == [f"spark.properties.{name} (line 3): {sentence}"]


_SPARK = {"type": "spark", "reducer": "a:b"}
_SIMPLE = {"type": "simple"}
_CUSTOM = {"type": "custom", "factory": "a:b"}
_DEAD_LETTERS = {"rejects": {"failing": "dead_letter", "topic": "events.dead"}}
_FITS_SPARK = (
    "does not fit the spark processor; it takes delta, sql, duckdb, "
    "kafka, jsonl, console, noop, custom "
    "or several"
)
_FITS_SIMPLE = "does not fit the simple processor; it takes function"
_FITS_NONE = "does not fit the custom processor; it takes none, so leave it out"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"sink": None},
            (
                "sink is missing; the spark processor takes delta, sql, duckdb, "
                "kafka, jsonl, console, "
                "noop, custom or several"
            ),
        ),
        ({"sink": "a:b"}, f"sink is of type function, which {_FITS_SPARK}"),
        (
            {"processor": _SIMPLE, "sink": None},
            ("sink is missing; the simple processor takes function"),
        ),
        ({"processor": _SIMPLE, "sink": "noop"}, f"sink is of type noop, which {_FITS_SIMPLE}"),
        ({"processor": _CUSTOM, "sink": "a:b"}, f"sink is of type function, which {_FITS_NONE}"),
        (
            {"processor": _CUSTOM, "sink": {"type": "delta", "path": "x"}},
            f"sink is of type delta, which {_FITS_NONE}",
        ),
        (
            {"buffer": {"max_bytes": "31MiB"}},
            (
                "buffer.max_bytes is 31MiB, less than twice "
                "batch.max_bytes (16MiB); give at least 32MiB"
            ),
        ),
        (
            {"batch": {"max_bytes": "65MiB"}},
            (
                "buffer.max_bytes is 128MiB, less than twice "
                "batch.max_bytes (65MiB); give at least 130MiB"
            ),
        ),
        (
            {"coordinator": {"type": "static", "partitions": {"other": [0], "flights": [0]}}},
            "coordinator.partitions.other is not a topic of the channel, which reads flights",
        ),
        (
            {"processor": _SPARK | {"decode": "json"}},
            "schema is missing; decode: json needs the columns to decode",
        ),
        (
            {"processor": _SPARK | {"schema": "a INT"}},
            "schema exists only with decode: json; write that, or leave the key out",
        ),
        (
            {"processor": _SPARK | {"timestamps": "millis"}},
            "timestamps exists only with decode: json; write that, or leave the key out",
        ),
        (
            {"processor": _SPARK, "rejects": {"undecodable": "skip"}},
            (
                "rejects.undecodable exists only with processor.decode: json; write that, or leave "
                "the key out"
            ),
        ),
        (
            {
                "processor": _SIMPLE | {"auto_advance": "periodic", "no_duplication": True},
                "sink": "a:b",
            },
            (
                "no_duplication is true, which needs a commit before every batch; "
                "write auto_advance: every-batch"
            ),
        ),
        (
            {"processor": _SIMPLE | {"auto_advance_interval": "5s"}, "sink": "a:b"},
            (
                "auto_advance_interval exists only with auto_advance: periodic; write that, or "
                "leave the key out"
            ),
        ),
        (
            {"rejects": {"failing": "dead_letter"}},
            "topic is missing; failing: dead_letter needs a topic, as in events.dead",
        ),
        (
            {"rejects": {"failing": "skip", "topic": "dead"}},
            (
                "topic exists only with failing: dead_letter, undecodable: dead_letter or "
                "overflow: dead_letter; write that, or leave the key out"
            ),
        ),
        (
            {
                "processor": {
                    "type": "arrow",
                    "reducer": "a:b",
                    "decode": "json",
                    "schema": "id INT",
                },
                "rejects": {"undecodable": "dead_letter"},
            },
            "topic is missing; undecodable: dead_letter needs a topic, as in events.dead",
        ),
        (
            {
                "processor": {"type": "arrow", "reducer": "a:b"},
                "rejects": {"undecodable": "dead_letter", "topic": "events.dead"},
            },
            (
                "rejects.undecodable exists only with processor.decode: json; write that, or leave "
                "the key out"
            ),
        ),
        (
            {"topics": ["events", "^ev.*"], **_DEAD_LETTERS},
            (
                "rejects.topic is events.dead, which the channel reads itself "
                "(events, ^ev.*); give it another name, one that no pattern of topics matches"
            ),
        ),
        (
            {
                "processor": _SIMPLE | {"no_duplication": True},
                "sink": "a:b",
                **_DEAD_LETTERS,
            },
            (
                "rejects exists only with processor.no_duplication: false; write that, or leave "
                "the key out"
            ),
        ),
        (
            {"retry": {"backoff": "31s"}},
            ("backoff is 31s, longer than max_backoff (30s); lower it or raise max_backoff"),
        ),
    ],
)
def test_parts_of_a_channel_fit_one_another(fields: dict[str, Any], problem: str) -> None:
    """Fields that are right alone and wrong together are refused, also in models built in code."""
    with pytest.raises(ValidationError) as caught:
        channel(**fields)
    assert [detail["msg"] for detail in caught.value.errors()] == [problem]


def test_conflicts_have_their_full_path_and_line(tmp_path: Path) -> None:
    """All conflicts of a channel are reported, each with the path and line of its field."""
    text = CHANNELS.replace("noop", "a:b") + "    buffer:\n      max_bytes: 1MiB\n"
    assert refused(tmp_path, text) == [
        f"channels.flights.sink (line 7): is of type function, which {_FITS_SPARK}",
        (
            "channels.flights.buffer.max_bytes (line 9): is 1MiB, less than twice batch.max_bytes "
            "(16MiB); give at least 32MiB"
        ),
    ]


def test_two_channels_are_not_members_of_one_group(tmp_path: Path) -> None:
    """A second channel of a group is refused by name, whatever it reads; others are not."""
    text = "channels:\n" + "".join(
        f"  {name}: {{topics: {topics}, group: {group}, sink: noop, "
        'processor: {type: spark, reducer: "a:b"}}\n'
        for name, topics, group in [
            ("one", "[a, b, c]", "g"),
            ("two", "[c, d, a]", "g"),
            ("three", "[a]", "h"),
        ]
    )
    assert refused(tmp_path, text) == [
        (
            "channels.two.group (line 3): is g, as in channel one; a process is one member of a "
            "group, so give one of them another group, or one channel the topics of both"
        )
    ]


def test_channels_may_share_a_table(tmp_path: Path) -> None:
    """Two channels may write to the same Delta table."""
    text = CHANNELS.replace("noop", "{type: delta, path: t}")
    again = text.replace("channels:\n", "").replace("flights", "again").replace("statistics", "h")
    channels = loaded(tmp_path, text + again).channels
    assert channels["flights"].sink == channels["again"].sink


def test_defaults_contradict_nothing() -> None:
    """Each processor with the least it needs makes a channel."""
    assert isinstance(channel().processor, SparkProcessorConfig)
    assert isinstance(channel(processor=_SIMPLE, sink="a:b"), ChannelConfig)
    assert isinstance(channel(processor=_CUSTOM, sink=None), ChannelConfig)


LETTERS = "{failing: dead_letter, topic: TOPIC}"


def _channels(**dead: tuple[str, str]) -> str:
    """Return channels by name, each with what it reads and where its dead letters go."""
    lines = [
        f"  {name}: {{topics: ['{reads}'], group: {name}, processor: {{type: simple}}, sink: 'a:b',"
        f" rejects: {LETTERS.replace('TOPIC', letters)}}}"
        for name, (reads, letters) in dead.items()
    ]
    return "\n".join(["channels:", *lines])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            _channels(a=("one", "two"), b=("two", "one")),
            "is two, and comes back by way of channel b",
        ),
        (
            _channels(a=("one", "two"), b=("^tw.$", "three"), c=("three", "one")),
            "is two, and comes back by way of channel b, c",
        ),
    ],
)
def test_dead_letters_do_not_go_round(tmp_path: Path, text: str, problem: str) -> None:
    """A record that fails in each of the channels would never come to rest."""
    (found,) = refused(tmp_path, text)
    assert found.startswith(f"channels.a.rejects.topic (line 2): {problem}, so that")


def test_dead_letters_may_be_read_by_another_channel(tmp_path: Path) -> None:
    """The reader's own letters must go elsewhere, and a disabled channel hands no records on."""
    loaded(tmp_path, _channels(a=("one", "two"), b=("two", "three"), c=("three", "four")))
    round_again = _channels(a=("one", "two"), b=("two", "one"))
    loaded(tmp_path, round_again.replace("b: {", "b: {enabled: false, "))


def test_many_channels_and_topics_are_compared_once(tmp_path: Path) -> None:
    """Each group is looked up, and each topic counted; comparing all pairs took minutes."""
    many = "\n".join(
        f"  c{n}: {{topics: [t], group: g{n % 1_000}, processor: {{type: simple}}, sink: 'a:b'}}"
        for n in range(1_100)
    )
    found = refused(tmp_path, f"channels:\n{many}")
    assert len(found) == 100
    assert found[0] == (
        "channels.c1000.group (line 1002): is g0, as in channel c0; a process is one member of a "
        "group, so give one of them another group, or one channel the topics of both"
    )
    topics = ", ".join(f"t{n}" for n in range(5_000))
    read = CHANNELS.replace("[flights]", f"[{topics}]")
    assert len(loaded(tmp_path, read).channels["flights"].topics) == 5_000
