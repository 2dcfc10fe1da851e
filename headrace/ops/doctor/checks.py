"""The checks of ``headrace doctor``: ACLs, code, files, Java, Spark, ZooKeeper, Kafka."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import sys
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, TypeVar

import structlog

from headrace import config
from headrace.channel.commits import REFRESH_INTERVAL
from headrace.channel.offset_stores import transactional_prefix
from headrace.config import (
    KafkaOffsetsConfig,
    ZooKeeperOffsetsConfig,
    keeps_offsets,
    single_sinks,
)
from headrace.config.derived import by_key_topic_of
from headrace.config.subscription import is_pattern
from headrace.coordinators.znodes import GroupPaths, producer_prefix
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import HeadraceError, ImportPathError, StartError
from headrace.core.files import existing
from headrace.core.findings import error, ok, warning
from headrace.core.hints import did_you_mean
from headrace.core.imports import load_callable, load_factory
from headrace.core.records import TopicPartition
from headrace.devstack.java import MINIMUM_JAVA, find_java, java_version
from headrace.extensions.keyed.codecs import partition_of
from headrace.extensions.keyed.names import changelog_name
from headrace.extensions.keyed.section import FIXED_KEYS, KeyedProcessorConfig, RekeyProcessorConfig
from headrace.extensions.keyed.topics import (
    Changelog,
    changelog_doubts,
    check_changelog,
    found_lost,
    replica_doubts,
)
from headrace.extensions.spark.settings import spark_settings
from headrace.kafka import KafkaOffsetStore, KafkaTopicCatalog, ResultTransactions
from headrace.kafka.catalog import subscribers
from headrace.kafka.clients import client_properties
from headrace.kafka.errors import KafkaUnavailableError
from headrace.kafka.fencing import fence_producers
from headrace.kafka.ports import TopicInfo
from headrace.kafka.result_transactions import sink_group
from headrace.kafka.source import KafkaRecordReader
from headrace.kafka.survey import KafkaSurvey
from headrace.zookeeper.settings import session_settings
from headrace.zookeeper.survey import survey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from headrace.config import ChannelConfig, Config, KafkaConfig, SparkConfig, ZooKeeperConfig
    from headrace.core.findings import Finding
    from headrace.core.records import Record
    from headrace.extensions.spark.dryrun import SparkCheck
    from headrace.extensions.spark.settings import SparkSettings
    from headrace.kafka.ports import StoredOffset, TopicCatalog
    from headrace.zookeeper.survey import ZooKeeperFacts


#: What ends the literal beginning of a regular expression; what takes the letter before it back.
_SPECIAL, _OPTIONAL = set(".^$*+?{}[]|()"), set("*?{")


@dataclass(frozen=True, slots=True)
class Acl:
    """One permission: operations on a resource, which is named in full or by its beginning."""

    resource: str
    name: str
    operations: tuple[str, ...]
    prefixed: bool = False


def needed_acls(config: Config) -> list[Acl]:
    """Return the permissions that the configuration's channels cannot do without.

    Read and Write on a topic, and Read on a group, imply Describe. Where offsets are in ZooKeeper
    the group's in Kafka are only looked at. A transactional id is fenced by whoever takes a
    partition over, so a member needs those of the whole group.
    """
    return list(
        dict.fromkeys(acl for each in config.channels.values() for acl in _of_channel(each))
    )


def _of_channel(channel: ChannelConfig) -> Iterator[Acl]:
    for entry in channel.topics:
        if is_pattern(entry):
            beginning = literal_beginning(entry)
            yield Acl("topic", beginning or "*", ("Read",), prefixed=bool(beginning))
        else:
            yield Acl("topic", entry, ("Read",))
    if channel.rejects.topic is not None:
        yield Acl("topic", channel.rejects.topic, ("Write",))
    yield from _of_own_topics(channel)
    for sink in single_sinks(channel.sink).values():
        if sink.writes_records:
            # without a topic the rows name theirs
            yield Acl("topic", sink.topic_written or "*", ("Write",))
            yield Acl("group", sink_group(channel.group), ("Read",))
            yield _transactional_id(channel.group)
    only_looks = isinstance(channel.offsets, ZooKeeperOffsetsConfig)
    yield Acl("group", channel.group, ("Describe" if only_looks else "Read",))
    match channel.offsets:
        case KafkaOffsetsConfig(fencing="transactions"):
            yield _transactional_id(channel.group)


def _of_own_topics(channel: ChannelConfig) -> Iterator[Acl]:
    """Yield what a channel with state needs of its own topics, and one that re-keys."""
    chosen, create = channel.processor, ("Create",)
    match chosen:
        case KeyedProcessorConfig():
            changelog = changelog_name(channel.group, channel.topics[0])
            grows = ("Alter",) if chosen.key in FIXED_KEYS else ()
            made = (*create, *grows) if chosen.internal.create else ()
            yield Acl("topic", changelog, (*made, "DescribeConfigs", "Read", "Write"))
            if chosen.internal.purge_input is not None:
                yield Acl("topic", channel.topics[0], ("Delete",))
            if channel.sink is None:
                yield Acl("group", sink_group(channel.group), ("Read",))
                yield _transactional_id(channel.group)
        case RekeyProcessorConfig():
            made = create if chosen.internal.create else ()
            yield Acl("topic", by_key_topic_of(channel), (*made, "DescribeConfigs"))
            for topic in channel.subscription.names:
                yield Acl("topic", topic, ("DescribeConfigs",))


def _transactional_id(group: str) -> Acl:
    return Acl("transactional-id", producer_prefix(group), ("Write",), prefixed=True)


def literal_beginning(pattern: str) -> str:
    """Return what all names begin with that the regular expression matches, as far as it shows."""
    found: list[str] = []
    if "|" in pattern:
        return ""
    for token in re.findall(r"\\.|.", pattern.removeprefix("^")):
        if token in _SPECIAL:
            if token in _OPTIONAL and found:
                found.pop()
            break
        if token.startswith("\\"):
            if token[1].isalnum():
                break
            token = token[1]  # noqa: PLW2901 - the letter that is meant
        found.append(token)
    return "".join(found)


def commands(config: Config, acls: list[Acl]) -> list[str]:
    """Return one command of Kafka's own tool for each permission."""
    servers = ",".join(config.kafka.bootstrap_servers)
    return [_command(servers, principal(config.kafka), acl) for acl in acls]


def principal(kafka: KafkaConfig) -> str:
    """Return who the brokers take the process for, as far as the configuration tells."""
    if kafka.sasl is not None:
        return f"User:{kafka.sasl.username}"
    if kafka.tls is not None and kafka.tls.certificate_file is not None:
        return "User:CN=<subject of kafka.tls.certificate_file>"
    return "User:ANONYMOUS"


def _command(servers: str, who: str, acl: Acl) -> str:
    words = ["kafka-acls.sh", "--bootstrap-server", servers, "--command-config", "admin.properties"]
    words += ["--add", "--allow-principal", who]
    words += [word for operation in acl.operations for word in ("--operation", operation)]
    words += [f"--{acl.resource}", acl.name]
    if acl.prefixed:
        words += ["--resource-pattern-type", "prefixed"]
    return shlex.join(words)


def check_code(settings: config.Config) -> Iterator[Finding]:
    """Import each channel's reducer, function or factories; that runs its module."""
    folders = [str(folder) for folder in settings.python_path]
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    for name, channel in settings.channels.items():
        called = channel.processor.called(channel)
        if called is not None:
            path, arguments = called
            yield _finding(
                f"code of channel {name}", path, partial(load_callable, path, *arguments)
            )
        decoder = channel.processor.decoder
        if decoder is not None:
            load = partial(load_factory, decoder.factory, decoder.options)
            yield _finding(f"decoder of channel {name}", decoder.factory, load)


def check_sinks(settings: config.Config) -> Iterator[Finding]:
    """Run each sink's own check of where it writes; that imports what it needs."""
    for name, channel in settings.channels.items():
        for sink in config.single_sinks(channel.sink).values():
            for finding in sink.check():
                yield replace(finding, check=f"{finding.check} of channel {name}")


def _finding(what: str, path: str, load: Callable[[], object]) -> Finding:
    try:
        load()
    except ImportPathError as problem:
        return error(what, str(problem), "correct the path or the code")
    return ok(what, path)


_CERTIFICATES = ("ca_file", "certificate_file", "client_ca_file")

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check_state_dir(config: Config) -> Iterator[Finding]:
    """Check that the process can write its state, and that no other user can."""
    path = Path(config.state_dir)
    folder = existing(path)
    if not folder.is_dir():
        yield error("state_dir", f"{folder} is no folder", "name another state_dir")
    elif not os.access(folder, os.W_OK | os.X_OK):
        advice = "run headrace as the folder's owner, or change its owner or state_dir"
        yield error("state_dir", f"{folder} cannot be written by this user", advice)
    elif folder != path:
        yield ok("state_dir", f"{path} will be made in {folder}")
    elif path.stat().st_mode & _OTHERS_WRITE:
        advice = f"chmod go-w {path}: who writes there can take the ZooKeeper session over"
        yield warning("state_dir", f"{path} can be written by others", advice)
    else:
        yield ok("state_dir", str(path))


def check_secrets(config: Config, file: Path, read: Collection[Path]) -> Iterator[Finding]:
    """Check the rights to read keys and files of ``${file:...}``, and to write ``file``.

    ``read`` are the files that loading the configuration has read, itself among them.
    """
    if file.stat().st_mode & _OTHERS_WRITE:
        advice = f"chmod go-w {file}: it names the code that runs"
        yield warning("configuration file", f"{file} can be written by others", advice)
    secret = [path for path in dict.fromkeys(read) if path.resolve() != file.resolve()]
    secret += _files_of(config, ("key_file",))
    yield from _readable([*secret, *_files_of(config, _CERTIFICATES)])
    for path in secret:
        if os.access(path, os.R_OK) and path.stat().st_mode & stat.S_IROTH:
            yield warning("secrets", f"{path} can be read by everybody", f"chmod o-r {path}")
    if secret and not any(_readable(secret)):
        yield ok("secrets", f"{len(secret)} files can be read")


def _files_of(config: Config, names: Collection[str]) -> list[Path]:
    """Return the files of these fields in all ``tls`` sections."""
    sections = (config.kafka.tls, config.zookeeper.tls, config.admin.tls)
    found = [getattr(tls, name, None) for tls in sections for name in names]
    return [path for path in found if path is not None]


def _readable(paths: Collection[Path]) -> Iterator[Finding]:
    for path in paths:
        if not os.access(path, os.R_OK):
            reason = "cannot be read by this user" if path.exists() else "does not exist"
            yield error("secrets", f"{path} {reason}", "correct the path, or the file's owner")


_CHECK = "java"

#: The newest Java that all lines of Spark 4 are tested with by their makers.
NEWEST_JAVA = 21

_INSTALL = "install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless)"


def check_java(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check the Java that Spark's launcher takes: that of JAVA_HOME, else of the PATH."""
    path = _launched(environment)
    if path is None:
        where = "JAVA_HOME" if environment.get("JAVA_HOME") else "PATH"
        yield error(_CHECK, f"no java in {where}", _advice(environment))
        return
    version = java_version(path)
    if version is None:
        yield error(_CHECK, f"{path} cannot be run", _advice(environment))
    elif version < MINIMUM_JAVA:
        seen = f"{path} is Java {version}; Spark needs {MINIMUM_JAVA} or later"
        yield error(_CHECK, seen, _advice(environment))
    elif version > NEWEST_JAVA:
        advice = f"Spark 4 supports Java {MINIMUM_JAVA} and {NEWEST_JAVA}; prefer one of them"
        yield warning(_CHECK, f"{path} is Java {version}", advice)
    else:
        yield ok(_CHECK, f"Java {version}: {path}")


def _launched(environment: Mapping[str, str]) -> Path | None:
    home = environment.get("JAVA_HOME")
    if home:
        path = Path(home, "bin", "java")
        return path if path.is_file() else None
    found = shutil.which("java", path=environment.get("PATH"))
    return None if found is None else Path(found)


def _advice(environment: Mapping[str, str]) -> str:
    """Return advice that names a suitable Java, if this machine has one."""
    found = find_java(environment)
    if found is None:
        return f"{_INSTALL}, or set JAVA_HOME"
    return f"set JAVA_HOME={found.home}, which is Java {found.version}"


_CONNECTOR = re.compile(
    r"org\.apache\.spark:(?P<name>[\w.-]+)_(?P<scala>[\d.]+):(?P<version>[\d.]+)"
)


def check_jars(spark: SparkConfig, pyspark_version: str) -> Iterator[Finding]:
    """Check the jars and packages in ``spark.properties``; by itself Headrace needs none."""
    properties = spark.session_properties()
    for jar in _listed(properties.get("spark.jars")):
        if "://" not in jar and not Path(jar).is_file():
            yield error("jars", f"spark.jars names {jar}, which is no file", "correct the path")
    line = ".".join(pyspark_version.split(".")[:2])
    for coordinate in _listed(properties.get("spark.jars.packages")):
        match = _CONNECTOR.fullmatch(coordinate)
        if match is not None and not match["version"].startswith(f"{line}."):
            yield error(
                "jars",
                f"{coordinate} is not of Spark {line}, which is installed",
                f"take org.apache.spark:{match['name']}_2.13:{line}.0",
            )


def _listed(value: object) -> list[str]:
    return [part.strip() for part in str(value or "").split(",") if part.strip()]


log = structlog.get_logger(__name__)


def check_spark(
    section: SparkConfig, attempt: Callable[[SparkSettings], SparkCheck] | None = None
) -> Iterator[Finding]:
    """Start a session with the configuration's settings and run a job. Takes 10 s and more."""
    from headrace.extensions.spark.dryrun import try_spark  # noqa: PLC0415 - an extra

    try:
        checked = (attempt or try_spark)(spark_settings(section))
    except Exception as problem:
        # whatever stops Spark here stops it in the daemon
        log.debug("doctor_spark_failed", exc_info=True)
        text = str(problem).strip().splitlines()
        seen = f"{type(problem).__name__}: {text[0] if text else 'no reason given'}"
        advice = "see the log above; correct the spark section or Java"
        yield error("spark", seen, advice)
    else:
        seen = f"Spark {checked.version} on {section.master}, {checked.cores} tasks at once: "
        yield ok("spark", f"{seen}a session and a job in {checked.seconds:.1f} s")


#: The oldest servers that tell the state of a node with its creation, as each claim wants to know.
OLDEST = (3, 5)

#: Seconds that clocks may differ: what people compare in logs, and what --until goes by.
SKEW = 2.0


def check_zookeeper(config: Config) -> Iterator[Finding]:
    """Open a session, and look at the nodes of the channels' groups."""
    groups = [channel.group for channel in config.channels.values()]
    paths = [path for group in groups for path in (GroupPaths(group).root, GroupPaths(group).ids)]
    try:
        facts = survey(session_settings(config.zookeeper), paths)
    except HeadraceError as problem:
        advice = "check that the servers run, zookeeper.hosts, and TLS and credentials"
        yield error("zookeeper", str(problem), advice)
        return
    yield from judge(facts, config)


def judge(facts: ZooKeeperFacts, config: Config) -> Iterator[Finding]:
    """Yield findings on what the facts mean for the configuration."""
    wanted, where = config.zookeeper, ",".join(config.zookeeper.hosts)
    yield _version(facts, where)
    if facts.mode == "standalone":
        advice = "for production run three or five servers"
        yield warning("zookeeper ensemble", "one server alone: its loss stops delivery", advice)
    if facts.chroot_exists:
        yield ok("zookeeper chroot", wanted.chroot or "/")
    else:
        yield ok("zookeeper chroot", f"{wanted.chroot} is made at the first start")
    for path in facts.denied:
        advice = (
            "correct zookeeper.digest or .sasl, or the node's ACL; all members need one identity"
        )
        yield error("zookeeper access", f"{path} is denied to this identity", advice)
    yield _acl(facts.opened, wanted)
    yield _timeout(facts.session_timeout, wanted.session_timeout)
    if facts.skew is not None:
        yield _skew(facts.skew, facts.skew_error)


def _version(facts: ZooKeeperFacts, where: str) -> Finding:
    if facts.version is None:
        return ok(
            "zookeeper", f"{where} answers; it does not tell its version (srvr is not allowed)"
        )
    seen = f"{where} is ZooKeeper {facts.version}, {facts.mode or 'mode unknown'}"
    if tuple(int(part) for part in facts.version.split(".")[:2]) < OLDEST:
        return error("zookeeper", seen, "take ZooKeeper 3.5 or later")
    return ok("zookeeper", seen)


def _acl(opened: Collection[str], wanted: ZooKeeperConfig) -> Finding:
    check, ways = "zookeeper acl", "take partitions away, or move offsets"
    if wanted.node_acl == "open":
        advice = (
            "set zookeeper.acl: creator, if all members have one identity"
            if wanted.has_identity
            else "give zookeeper.digest or .sasl, which closes nodes to everybody else"
        )
        seen = f"nodes are made open: whoever reaches ZooKeeper may {ways}"
        return warning(check, seen, advice)
    if opened:
        seen = f"{len(opened)} nodes are open, such as {min(opened)}: everybody may {ways}"
        return warning(check, seen, "close them with setAcl -R, as docs/upgrade.md says")
    return ok(check, f"{wanted.node_acl}")


def _timeout(agreed: float, asked: float) -> Finding:
    if abs(agreed - asked) < 0.001:  # noqa: PLR2004 - milliseconds
        return ok("zookeeper session", f"{agreed:g} s, as asked for")
    return warning(
        "zookeeper session",
        f"{agreed:g} s instead of the {asked:g} s asked for",
        "the servers bound sessions to 2 to 20 ticks: change zookeeper.session_timeout, or their "
        "minSessionTimeout and maxSessionTimeout",
    )


def _skew(skew: float, wrong_by: float) -> Finding:
    seen = f"this machine and ZooKeeper's differ by {abs(skew):.1f} s"
    if abs(skew) > SKEW + wrong_by:
        return warning("clock", seen, "synchronize both clocks (chrony, systemd-timesyncd)")
    return ok("clock", seen)


T = TypeVar("T")

#: Seconds in which the brokers have to answer one check.
TIMEOUT = 15.0

#: How often a question is asked, and the seconds between: a new cluster makes the topic for its
#: groups' offsets only when it is first asked for one, and that takes a busy broker some time.
TRIES, PAUSE = 4, 2.5

#: Seconds by which a record may be newer than now before somebody's clock is wrong.
AHEAD = 5.0

#: What topics of brokers without topic ids have for an id.
_NO_ID = ("", "None", "AAAAAAAAAAAAAAAAAAAAAA")

_REACH = "check that the brokers run, kafka.bootstrap_servers, and TLS and credentials"


def check_kafka(config: Config) -> Iterator[Finding]:
    """Ask the brokers everything that the channels will ask them."""
    properties = client_properties(config.kafka)
    with ExitStack() as stack:
        try:
            group = next((channel.group for channel in config.channels.values()), "headrace")
            # the first client, because it says which of the properties is refused
            stack.enter_context(closing(KafkaOffsetStore(properties, group)))
            catalog = stack.enter_context(closing(KafkaTopicCatalog(properties, group)))
            survey = KafkaSurvey(properties)
            cluster = survey.cluster(Deadline.after(TIMEOUT))
        except HeadraceError as problem:
            yield error("kafka", str(problem), _REACH)
            return
        brokers = ", ".join(cluster.brokers.values())
        yield ok("kafka", f"cluster {cluster.cluster_id}: {brokers}")
        yield from check_retention(config.channels, survey, min(cluster.brokers))
        reader = KafkaRecordReader(properties, group)
        made = _made_at_the_start(config)
        clients = _Clients(catalog, survey, reader, properties, config.instance_id, made)
        for name, channel in config.channels.items():
            yield from _channel(name, channel, clients)


def check_retention(
    channels: Mapping[str, ChannelConfig], survey: KafkaSurvey, broker: int
) -> Iterator[Finding]:
    """Compare how long brokers keep a group's offsets with how often idle ones are stored again.

    Too short is an error for channels that have no others, and for those whose sink has, a
    warning: they lose their way only where the sink has none yet, and their lag cannot be seen.
    """
    concerned = {name: c for name, c in channels.items() if _keeps_in_kafka(c)}
    if not concerned:
        return
    check = "kafka offset retention"
    try:
        settings = survey.settings(broker, Deadline.after(TIMEOUT))
        seconds = float(settings["offsets.retention.minutes"]) * 60
    except (KafkaUnavailableError, KeyError, ValueError) as problem:
        advice = "to have it checked, allow DescribeConfigs on the cluster; or ask who runs it"
        yield warning(check, f"not known: {problem}", advice)
        return
    seen = f"{seconds / 60:g} min; offsets of idle partitions are stored every hour"
    lost = [name for name, c in concerned.items() if not keeps_offsets(c.sink)]
    advice = "raise offsets.retention.minutes above 60, or keep offsets in ZooKeeper"
    if seconds > REFRESH_INTERVAL:
        yield ok(check, seen)
    elif lost:
        yield error(check, f"{seen}: those of {', '.join(lost)} would be forgotten", advice)
    else:
        yield warning(check, f"{seen}: they would be forgotten, and the tables alone know", advice)


def _keeps_in_kafka(channel: ChannelConfig) -> bool:
    return isinstance(channel.offsets, KafkaOffsetsConfig)


@dataclass(frozen=True, slots=True)
class _Clients:
    """What the brokers are asked with, and the name of the member that will run.

    ``made`` are topics that channels create at the start.
    """

    catalog: KafkaTopicCatalog
    survey: KafkaSurvey
    reader: KafkaRecordReader
    properties: Mapping[str, object]
    member: str
    made: Collection[str]


def _channel(name: str, channel: ChannelConfig, clients: _Clients) -> Iterator[Finding]:
    check = f"topics of channel {name}"
    try:
        found = _topics(channel, clients.catalog)
        is_whole = found.keys() >= set(channel.subscription.names)
        known = () if is_whole else sorted(clients.catalog.names(Deadline.after(TIMEOUT)))
        yield from judge_topics(check, channel, found, clients.made, known)
        yield from check_written(name, channel, clients.catalog, clients.made)
        yield from check_internal(name, channel, clients.catalog)
        offsets = ResultTransactions(clients.properties, channel.group, clients.member)
        with closing(offsets):
            yield from check_state(name, channel, clients.catalog, offsets.last_entries)
        partitions = [
            TopicPartition(t.name, n) for t in found.values() for n in range(t.partitions)
        ]
        newest = clients.survey.newest(partitions, Deadline.after(TIMEOUT))
        yield from check_stamps(check, newest)
        yield from _partitioner(name, channel, partitions, clients)
    except HeadraceError as problem:
        yield error(check, str(problem), "see below for the permissions that the topics need")
        return
    yield from _group(name, channel, partitions, clients.properties)
    prefix = transactional_prefix(channel, clients.member)
    if prefix is not None:
        yield from _transactions(name, f"{prefix}.doctor", clients.properties)


def _topics(channel: ChannelConfig, catalog: KafkaTopicCatalog) -> Mapping[str, TopicInfo]:
    """Return the channel's topics that exist."""
    subscription, deadline = channel.subscription, Deadline.after(TIMEOUT)
    names = set(subscription.names)
    if subscription.patterns:
        names |= {topic for topic in catalog.names(deadline) if subscription.matches(topic)}
    return catalog.describe(sorted(names), deadline)


def _made_at_the_start(settings: Config) -> frozenset[str]:
    """Return the topics that re-keying channels create where they do not exist."""
    return frozenset(
        by_key_topic_of(channel)
        for channel in settings.channels.values()
        if isinstance(channel.processor, RekeyProcessorConfig) and channel.processor.internal.create
    )


def judge_topics(
    check: str,
    channel: ChannelConfig,
    found: Mapping[str, TopicInfo],
    made: Collection[str] = (),
    known: Collection[str] = (),
) -> Iterator[Finding]:
    """Yield findings on the topics of a channel; ``made`` are created at the start.

    ``known`` are all that there are, one of which may have been meant.
    """
    for name in channel.subscription.names:
        if name not in found and name in made:
            yield ok(check, f"{name} is created at the start")
        elif name not in found:
            advice = "create it, or correct the name; or this user may not describe it (see below)"
            yield error(check, f"{name} does not exist{did_you_mean([name], known)}", advice)
    for pattern in channel.subscription.fruitless(found):
        advice = "the channel waits for the first one; this user sees only what it may describe"
        yield warning(check, f"no topic matches {pattern}", advice)
    if any(topic.topic_id in _NO_ID for topic in found.values()):
        advice = "take brokers of Kafka 2.8 or later"
        yield error(
            check, "the brokers give topics no ids, by which deleted ones are known", advice
        )
    elif found:
        seen = ", ".join(f"{topic.name} ({topic.partitions})" for topic in found.values())
        yield ok(check, f"topics and partitions: {seen}")


def check_internal(
    name: str, channel: ChannelConfig, catalog: KafkaTopicCatalog
) -> Iterator[Finding]:
    """Check the internal topics of a channel, if they exist."""
    chosen = channel.processor
    match chosen:
        case KeyedProcessorConfig():
            topic = changelog_name(channel.group, channel.topics[0])
            check = f"state of channel {name}"
        case RekeyProcessorConfig():
            topic, check = by_key_topic_of(channel), f"records by key of channel {name}"
        case _:
            return
    found = catalog.describe([topic], Deadline.after(TIMEOUT)).get(topic)
    if found is None:
        if not chosen.internal.create:
            yield error(check, f"{topic} does not exist", "headrace state topics --create makes it")
        return
    settings = catalog.settings(topic, Deadline.after(TIMEOUT))
    doubts = list(replica_doubts(found.replicas, settings))
    if isinstance(chosen, KeyedProcessorConfig):
        try:
            check_changelog(topic, channel.group, settings)
        except StartError as problem:
            seen, _, advice = str(problem).rpartition("; ")
            yield error(check, seen, advice)
            return
        doubts += changelog_doubts(settings, chosen.state.max_row)
    for doubt in doubts:
        seen, _, advice = doubt.rpartition("; ")
        yield warning(check, f"{topic}: {seen}", advice)
    if not doubts:
        yield ok(check, f"{topic} is compacted, or keeps its records, on several brokers")


def check_state(
    name: str,
    channel: ChannelConfig,
    catalog: TopicCatalog,
    stored: Callable[[Collection[str], Deadline], Mapping[str, StoredOffset]],
) -> Iterator[Finding]:
    """Check for lost state of a channel, and for keys that more input partitions would split."""
    chosen = channel.processor
    if not isinstance(chosen, KeyedProcessorConfig):
        return
    topic, name_of_state = channel.topics[0], changelog_name(channel.group, channel.topics[0])
    found = catalog.describe([topic, name_of_state], Deadline.after(TIMEOUT))
    if topic not in found:
        return
    there = found.get(name_of_state, TopicInfo(name_of_state, "", 0))
    for problem in found_lost(
        catalog,
        Changelog(there.name, there.topic_id, 0.0, there.partitions),
        channel.group,
        topic,
        partitions=None if chosen.key in FIXED_KEYS else found[topic].partitions,
        stored=stored,
    ):
        seen, _, advice = problem.partition(". ")
        yield error(f"state of channel {name}", seen, advice)


def check_written(
    name: str, channel: ChannelConfig, catalog: TopicCatalog, made: Collection[str] = ()
) -> Iterator[Finding]:
    """Check that the topics exist that the channel writes to: dead letters, and its sink's.

    ``made`` are created at the start.
    """
    if channel.rejects.topic is not None:
        check = f"dead letters of channel {name}"
        yield _written(check, channel.rejects.topic, "rejects.topic", catalog)
    # without a topic each row names its own
    for steps, sink in single_sinks(channel.sink).items():
        if sink.topic_written is not None:
            key = ".".join([*map(str, steps), "topic"])
            yield _written(f"sink of channel {name}", sink.topic_written, key, catalog, made)


def _written(
    check: str, topic: str, key: str, catalog: TopicCatalog, made: Collection[str] = ()
) -> Finding:
    found = catalog.describe([topic], Deadline.after(TIMEOUT)).get(topic)
    if found is None and topic in made:
        return ok(check, f"{topic} is created at the start")
    if found is None:
        advice = f"create it, or correct {key}; or this user may not describe it"
        return error(check, f"{topic} does not exist", advice)
    return ok(check, f"{found.name} ({found.partitions})")


#: Records that are read to see how producers partition.
_SAMPLE = 1000


def _partitioner(
    name: str, channel: ChannelConfig, partitions: Collection[TopicPartition], clients: _Clients
) -> Iterator[Finding]:
    """Read the last records of what a channel keeps state of, by the records' own keys."""
    chosen = channel.processor
    if not isinstance(chosen, KeyedProcessorConfig) or chosen.key != "record":
        return
    if not partitions or set(channel.topics) <= set(clients.made):
        return
    deadline, bounds = Deadline.after(TIMEOUT), {}
    for partition in partitions:
        low, high = clients.catalog.watermarks(partition, deadline)
        bounds[partition] = max(low, high - max(1, _SAMPLE // len(partitions))), high
    records = clients.reader.between(bounds, deadline)
    yield from judge_partitioner(
        f"keys of channel {name}", channel.topics[0], len(partitions), records
    )


def judge_partitioner(
    check: str, topic: str, partitions: int, records: Collection[Record]
) -> Iterator[Finding]:
    """Check that records are in the partitions where Java's producers, and ours, put keys.

    Any partitioner will do that puts a key into one partition, but nobody else finds it there.
    """
    places: dict[bytes, set[int]] = {}
    elsewhere = 0
    for record in records:
        key, number = record.key(), record.partition()
        if key is not None and number is not None:
            places.setdefault(key, set()).add(number)
            elsewhere += number != partition_of(key, partitions)
    keyless = sum(record.key() is None for record in records)
    apart = sum(len(found) > 1 for found in places.values())
    of_all = f"of {len(records)} records"
    if keyless:
        advice = (
            "set processor.key to what the key is, such as value.id, or rejects.undecodable to skip"
        )
        yield error(check, f"{topic}: {keyless} {of_all} have no key", advice)
    seen = f"{topic}: {elsewhere} {of_all} are in another partition than Java's producers put them"
    rekey = "processor.key: key, which writes the records again by key"
    if apart:
        seen += f", and {apart} of {len(places)} keys are in several: each has several states"
        yield error(check, seen, f"set {rekey}; or have all producers partition alike")
    elif elsewhere:
        seen += ": librdkafka's default is another partitioner"
        advice = f"set {rekey}; or partitioner=murmur2_random in all producers of librdkafka"
        yield warning(check, seen, advice)
    elif places:
        yield ok(check, f"{topic}: {len(records) - keyless} {of_all} are where their keys belong")


def check_stamps(check: str, newest: float | None) -> Iterator[Finding]:
    """Check for records from the future: then producers' or brokers' clocks are wrong."""
    ahead = 0.0 if newest is None else newest - SYSTEM_CLOCK.time()
    if ahead > AHEAD:
        advice = "synchronize the clocks of this machine, the producers and the brokers"
        yield warning(check, f"the newest record is {ahead:.0f} s in the future", advice)


def _group(
    name: str,
    channel: ChannelConfig,
    partitions: list[TopicPartition],
    properties: Mapping[str, object],
) -> Iterator[Finding]:
    check = f"group of channel {name}"
    try:
        with closing(KafkaOffsetStore(properties, channel.group)) as store:
            stored = _patiently(lambda: store.read_many(partitions, Deadline.after(TIMEOUT)))
        others = _patiently(lambda: subscribers(properties, channel.group, Deadline.after(TIMEOUT)))
    except HeadraceError as problem:
        yield error(check, str(problem), "see below for the permissions that the group needs")
        return
    seen = f"{channel.group} has subscribed consumers: {', '.join(others)}"
    if others and _keeps_in_kafka(channel):
        advice = "stop them, or give the channel another group: while they are there, the brokers "
        advice += "take nobody else's offsets"
        yield error(check, seen, advice)
    elif others:
        yield warning(
            check, seen, "stop them if they do the channel's work: neither sees the other"
        )
    else:
        yield ok(
            check, f"{channel.group}: offsets of {len(stored)} of {len(partitions)} partitions"
        )


def _patiently(ask: Callable[[], T]) -> T:
    """Ask until there is an answer: a group's coordinator refuses to give one while it is moved."""
    for _ in range(TRIES - 1):
        with suppress(HeadraceError):
            return ask()
        Event().wait(PAUSE)
    return ask()


def _transactions(
    name: str, transactional_id: str, properties: Mapping[str, object]
) -> Iterator[Finding]:
    """Initialize a transactional producer under an id that no member has."""
    check = f"transactions of channel {name}"
    try:
        fence_producers(properties, [transactional_id], Deadline.after(TIMEOUT))
    except HeadraceError as problem:
        yield error(check, str(problem), "see below for the permissions that fencing needs")
    else:
        yield ok(check, "a producer with a transactional id of the group's is let in")
