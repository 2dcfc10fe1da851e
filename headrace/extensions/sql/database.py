"""The database: how it is reached, what it is called in messages, and how long it may keep us."""

from __future__ import annotations

import logging
import re
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    NoSuchModuleError,
    SQLAlchemyError,
    StatementError,
)

from headrace.config.types.addresses import DRIVERS
from headrace.core.errors import ConfigError, StartError
from headrace.extensions.sql.columns import (
    MYSQL_DIALECTS,
    is_numbered,
    json_of,
    number_of,
    state_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeAlias

    import psycopg
    from sqlalchemy.engine import URL, Connection, Engine

    #: What a statement may read.
    Buffer: TypeAlias = bytes | memoryview

#: Seconds one statement may take, waiting for locks included, and seconds a transaction may stand
#: still before PostgreSQL or MariaDB ends it: a member that was stopped inside of one blocks none
#: longer.
TIMEOUT = 60.0

#: Seconds until a connection stands, and until one whose other end went silent is given up.
_CONNECT_TIMEOUT = 10
_SILENCE = 20

#: What libpq takes; whatever the url says of them holds.
_LIBPQ = {
    "connect_timeout": _CONNECT_TIMEOUT,
    "keepalives_idle": _SILENCE // 2,
    "keepalives_interval": _SILENCE // 4,
    "keepalives_count": 2,
    "tcp_user_timeout": _SILENCE * 1000,
}

#: What a session keeps and our statements depend on. A pooler deals out connections that other
#: clients have had, so each transaction has its own, as the database and the user's role say.
#: The role comes first: the search path may name it.
_OF_THE_SESSION = ("role", "search_path", "TimeZone", "synchronous_commit", "lock_timeout")

#: The first schema of the search path that has the table. Never that of temporary tables, which is
#: looked into before all others and may be left by another client of a pooler.
_SCHEMA_OF = sa.text(
    "SELECT n.nspname FROM pg_catalog.pg_class c "
    "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
    "WHERE c.relname = :name AND c.relkind = ANY ('{r,p,v,f}') "
    "AND n.nspname = ANY (current_schemas(false)) "
    "ORDER BY array_position(current_schemas(false), n.nspname) LIMIT 1"
)

#: What the server itself says of the connection: its process, and its end of the socket.
_SERVER_END = (
    "SELECT pg_backend_pid(), coalesce(host(inet_server_addr()), ''), "
    "coalesce(inet_server_port(), current_setting('port')::int)"
)

#: The drivers that send several statements without parameters as one message.
_SIMPLE_QUERIES = frozenset({"psycopg", "psycopg2"})

#: Times that psycopg executes a statement before it has a server prepare it, which is its default.
_PREPARED_AFTER = 5

#: The option of a statement that has what a COPY or a LOAD DATA reads.
_COPIED = "headrace_copied"

#: The SQL states of a transaction that gave way to another one, and can be made again: it could
#: not be put in an order with others, it was in a deadlock, or waited too long for a lock.
_GAVE_WAY = frozenset({"40001", "40P01", "55P03"})

#: MySQL's numbers for the last two. Not every driver hands on the state.
_GAVE_WAY_IN_MYSQL = frozenset({1213, 1205})

#: What it says where a row has a key that is there; the message quotes the value.
_DUPLICATE = re.compile(r"Duplicate entry '.*' for key", re.DOTALL)

#: The engines of tables that cannot be rolled back.
_ENGINE_WITHOUT_TRANSACTIONS = sa.text(
    "SELECT t.ENGINE FROM information_schema.TABLES t "
    "JOIN information_schema.ENGINES e ON e.ENGINE = t.ENGINE "
    "WHERE t.TABLE_SCHEMA = :schema AND t.TABLE_NAME = :name AND e.TRANSACTIONS <> 'YES'"
)

#: How tables are made there: able to roll back, and telling upper from lower case.
_TABLE_OPTIONS = {"engine": "InnoDB", "charset": "utf8mb4", "collate": "utf8mb4_bin"}
TABLE_OPTIONS: dict[str, Any] = {
    f"{dialect}_{name}": value
    for dialect in MYSQL_DIALECTS
    for name, value in _TABLE_OPTIONS.items()
}


class TableName(NamedTuple):
    """A table's name, and its schema where one was given."""

    schema: str | None
    name: str

    @classmethod
    def of(cls, text: str) -> TableName:
        """Read ``table`` or ``schema.table``."""
        schema, _, name = text.rpartition(".")
        return cls(schema or None, name)

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


class Database:
    """A pool of connections. ``name`` is without user, password and options. Any thread.

    Nothing is connected before it is needed. ``password`` takes the place of one in the url;
    ``timeout`` is in seconds.

    Raises:
        ConfigError: the url is none, its driver is not installed, or nothing in it would last.
    """

    def __init__(self, url: str, password: str | None = None, timeout: float = TIMEOUT) -> None:
        self.url = _parsed(url, password)
        self.name = _name(self.url)
        self.dialect = self.url.get_backend_name()
        self.timeout = timeout
        self._driver = self.url.drivername.rpartition("+")[2]
        self._settings = _transaction_settings(timeout)
        self._default_schema: str | None = None
        self.engine = self._engine(timeout)

    def _begin_transaction(self, connection: Connection) -> None:
        """Start the transaction so that it does not depend on the session's state."""
        if self._driver in _SIMPLE_QUERIES:
            connection.exec_driver_sql("; ".join(self._settings))
            return
        for statement in self._settings:
            connection.exec_driver_sql(statement)

    def _engine(self, timeout: float) -> Engine:
        try:
            engine = sa.create_engine(
                self.url,
                connect_args=_connect_args(self.url, timeout),
                json_serializer=json_of,
                hide_parameters=True,
                pool_pre_ping=True,
                **self._isolation(),
            )
        except NoSuchModuleError:
            problem = f"{self.name}: SQLAlchemy knows no such database; correct the url's beginning"
            raise ConfigError([problem]) from None
        except ImportError as error:
            problem = f"{self.name}: its driver is not installed ({error}); install it with pip"
            raise ConfigError([problem]) from None
        sa.event.listen(engine, "handle_error", _without_values)
        if self._driver == "psycopg":
            logging.getLogger("psycopg").addFilter(_brief_record)
            sa.event.listen(engine, "connect", _prepare_if_direct)
            sa.event.listen(engine, "do_execute_no_params", _copy)
        if self.is_mysql:
            sa.event.listen(engine, "connect", _settings_of_a_session(timeout), insert=True)
        if self.loads:
            sa.event.listen(engine, "do_connect", _connect_feeding)
            sa.event.listen(engine, "do_execute_no_params", _feed)
        return engine

    @property
    def is_mysql(self) -> bool:
        """Return whether it is MySQL or MariaDB."""
        return self.dialect in MYSQL_DIALECTS

    def _isolation(self) -> dict[str, Any]:
        """Return what has a transaction see what others committed while it waited for them.

        MySQL shows what there was when it read first: an offset that was moved meanwhile would be
        taken for the one that a commit begins at.
        """
        return {"isolation_level": "READ COMMITTED"} if self.is_mysql else {}

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Commit what is done inside, or roll all of it back when it raises. Blocks."""
        with self.engine.begin() as connection:
            if self.dialect == "postgresql":
                self._begin_transaction(connection)
            yield connection

    def default_schema(self, connection: Connection) -> str:
        """Return the schema of tables that are named without one. May block, the first time."""
        if self.dialect != "postgresql":
            return connection.dialect.default_schema_name or ""
        if self._default_schema is None:
            found = connection.execute(sa.text("SELECT current_schema()")).scalar_one()
            self._default_schema = found or ""
        return self._default_schema

    def located(self, connection: Connection, name: TableName) -> TableName:
        """Return the name with the schema where the table is, or would be made. Blocks.

        On PostgreSQL alone, where what a bare name means is for the session to say.
        """
        if self.dialect != "postgresql" or name.schema is not None:
            return name
        found = connection.execute(_SCHEMA_OF, {"name": name.name}).scalar_one_or_none()
        return TableName(found or self.default_schema(connection) or None, name.name)

    def has(self, table: sa.Table) -> bool:
        """Return whether a table is there. Blocks."""
        with self.transaction() as connection:
            return sa.inspect(connection).has_table(table.name, schema=table.schema)

    def create(self, table: sa.Table) -> None:
        """Create a table where it is missing. Blocks; raises SQLAlchemyError."""
        if self.has(table):
            return
        try:
            with self.transaction() as connection:
                table.create(connection)
        except SQLAlchemyError:
            if not self.has(table):  # else another member was first
                raise

    def require_transactions(self, connection: Connection, name: TableName) -> None:
        """Raise StartError if a table's rows could not be taken back. Blocks.

        On MySQL and MariaDB alone, where that is the choice of the table's creator.
        """
        if not self.is_mysql:
            return
        where = {"schema": name.schema or self.default_schema(connection), "name": name.name}
        engine = connection.execute(_ENGINE_WITHOUT_TRANSACTIONS, where).scalar_one_or_none()
        if engine is not None:
            raise StartError(
                f"{name} in {self.name}: the table's engine is {engine}, which has no "
                f"transactions, so that rows and offsets would not be stored together; ALTER TABLE "
                f"{name} ENGINE=InnoDB"
            )

    def longest_statement(self, connection: Connection) -> int | None:
        """Return how many bytes the server takes at once, None where it has no such limit. Blocks.

        MySQL and MariaDB end the connection of a client that sends more.
        """
        if not self.is_mysql:
            return None
        return int(connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one())

    @property
    def copies(self) -> bool:
        """Return whether :meth:`copy` can be used: with psycopg."""
        return self.dialect == "postgresql" and self._driver == "psycopg"

    @property
    def loads(self) -> bool:
        """Return whether :meth:`copy` takes LOAD DATA: with PyMySQL."""
        return self.is_mysql and self._driver == "pymysql"

    def copy(self, connection: Connection, statement: str, data: Iterable[Buffer]) -> int:
        """Execute a COPY FROM STDIN, or a LOAD DATA LOCAL, with what it reads. Blocks.

        Return how many rows the server took. What ``data`` raises ends the statement.
        """
        options = {"no_parameters": True, _COPIED: data}
        return connection.exec_driver_sql(statement, execution_options=options).rowcount

    def close(self) -> None:
        """Close the connections that are not in use."""
        self.engine.dispose()


def _transaction_settings(timeout: float) -> tuple[str, ...]:
    """Return what a transaction of PostgreSQL begins with; ``timeout`` is in seconds."""
    limit = round(timeout * 1000)
    return (
        *(f"SET LOCAL {name} TO DEFAULT" for name in _OF_THE_SESSION),
        f"SET LOCAL statement_timeout = {limit}",
        f"SET LOCAL idle_in_transaction_session_timeout = {limit}",
    )


def _settings_of_a_session(timeout: float) -> Callable[[Any, object], None]:
    """Return what a connection to MySQL or MariaDB begins with; ``timeout`` is in seconds.

    Moments are in UTC, and a value that does not fit its column is refused and not cut. MariaDB
    ends statements that take too long and transactions that stand still; MySQL has no such limit.
    """
    limit = max(1, round(timeout))
    for_all = (
        "time_zone = '+00:00'",
        "sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE')",
        f"innodb_lock_wait_timeout = {limit}",
    )
    of_mariadb = (f"max_statement_time = {limit}", f"idle_transaction_timeout = {limit}")

    def settle(connection: Any, _: object) -> None:
        with closing(connection.cursor()) as cursor:
            cursor.execute("SELECT VERSION()")
            is_mariadb = "MariaDB" in str(cursor.fetchone()[0])
            settings = (*for_all, *of_mariadb) if is_mariadb else for_all
            cursor.execute("SET " + ", ".join(f"SESSION {each}" for each in settings))

    return settle


def _prepare_if_direct(connection: psycopg.Connection, _: object) -> None:
    """Enable psycopg's prepared statements if the other end is the PostgreSQL server itself.

    It names them by a number, the same in each client. A pooler that deals out its connections by
    transactions gives one client's number to what another one had prepared. So both ends have to
    agree on what the connection is: the server's process, whose number a pooler makes up, and the
    server's address and port, which are others with a pooler or a proxy between.
    """
    info = connection.info
    try:
        found = connection.execute(_SERVER_END).fetchone()
    except type(connection).ProgrammingError:  # a server that speaks like PostgreSQL and is another
        found = None
    finally:
        connection.rollback()
    if found == (info.backend_pid, info.hostaddr, info.port):
        connection.prepare_threshold = _PREPARED_AFTER


def _copy(cursor: psycopg.Cursor, statement: str, context: sa.ExecutionContext) -> bool | None:
    """Execute a statement that reads what its options have; return None for any other."""
    data = context.execution_options.get(_COPIED)
    if data is None:
        return None
    with cursor.copy(statement.encode()) as copy:
        for part in data:
            copy.write(part)
    return True


def _connect_feeding(_dialect: object, _record: object, arguments: Any, options: Any) -> Any:
    """Return a connection whose statements may read data of this process."""
    from headrace.extensions.sql.local_data import FeedingConnection  # noqa: PLC0415 - takes PyMySQL

    return FeedingConnection(*arguments, **options)


def _feed(cursor: Any, statement: str, context: sa.ExecutionContext) -> bool | None:
    """Execute a statement that reads what its options have; return None for any other."""
    data = context.execution_options.get(_COPIED)
    if data is None:
        return None
    with cursor.connection.feeding(data):
        cursor.execute(statement)
    return True


@contextmanager
def explained(connection: Connection) -> Iterator[None]:
    """Turn statements in the block into EXPLAIN, which does not execute them."""

    def ask(
        _connection: Connection, _cursor: Any, statement: str, parameters: Any, *_: Any
    ) -> tuple[str, Any]:
        return f"EXPLAIN {statement}", parameters

    sa.event.listen(connection, "before_cursor_execute", ask, retval=True)
    try:
        yield
    finally:
        sa.event.remove(connection, "before_cursor_execute", ask)


def gave_way(error: Exception) -> bool:
    """Return whether a transaction was undone in favour of another one and may succeed when
    repeated.
    """
    if not isinstance(error, DBAPIError):
        return False
    return state_of(error) in _GAVE_WAY or number_of(error) in _GAVE_WAY_IN_MYSQL


def brief(error: Exception) -> str:
    """Return the database's own words, without the statement and without rows."""
    original = getattr(error, "orig", None)
    number = number_of(error)
    if number is not None and original is not None:
        return f"{original.args[1]} ({number})"
    return str(original or error).strip()


def _without_values(context: sa.ExceptionContext) -> None:
    """Strip an error to its primary message and a constraint's name.

    PostgreSQL's DETAIL has the whole row that it refuses. The errors are changed themselves,
    because they are in tracebacks too, as what others came from.
    """
    original, error = context.original_exception, context.sqlalchemy_exception
    said = _primary(original)
    if said is not None:
        original.args = (said,)
    elif is_numbered(original):
        number, said = original.args
        said = _DUPLICATE.sub("Duplicate entry for key", said)
        original.args = (number, said)
    if error is None:
        return
    if said is not None:
        kind = type(original)
        error.args = (f"({kind.__module__}.{kind.__name__}) {said}",)
    if isinstance(error, StatementError):
        error.statement = error.params = None


def _brief_record(record: logging.LogRecord) -> bool:
    """Strip the errors in a line of the driver's log, as :func:`_without_values` does."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            (_primary(each) or each) if isinstance(each, BaseException) else each
            for each in record.args
        )
    return True


def _primary(error: BaseException) -> str | None:
    """Return what a PostgreSQL server says in short, None of errors that do not come from one."""
    diagnosis = getattr(error, "diag", None)
    message: str | None = getattr(diagnosis, "message_primary", None)
    if message is None:
        return None
    constraint: str | None = getattr(diagnosis, "constraint_name", None)
    if constraint is None or f'"{constraint}"' in message:
        return message
    return f'{message} (constraint "{constraint}")'


def _parsed(text: str, password: str | None) -> URL:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        problem = "the url cannot be read; write it as postgresql+psycopg://user@host/database"
        raise ConfigError([problem]) from None
    if url.get_backend_name() == "sqlite" and (url.database or ":memory:") == ":memory:":
        raise ConfigError(["sqlite: without a file nothing lasts; write sqlite:////path/to/file"])
    if url.drivername in DRIVERS:  # what SQLAlchemy takes then differs with its version
        url = url.set(drivername=f"{url.drivername}+{DRIVERS[url.drivername]}")
    return url if password is None else url.set(password=password)


def _name(url: URL) -> str:
    port = "" if url.port is None else f":{url.port}"
    return f"{url.get_backend_name()}://{url.host or ''}{port}/{url.database or ''}"


def _connect_args(url: URL, timeout: float) -> dict[str, Any]:
    driver = url.drivername.rpartition("+")[2]
    if url.get_backend_name() == "sqlite":
        wanted: dict[str, Any] = {"timeout": timeout}
    elif driver in {"psycopg", "psycopg2"}:
        wanted = dict(_LIBPQ)
    elif driver in {"pymysql", "mysqldb"}:
        # a statement ends by itself before that, so that then the other end is silent
        wanted = {"connect_timeout": _CONNECT_TIMEOUT, "read_timeout": round(timeout) + _SILENCE}
    else:
        wanted = {}
    chosen = {name: value for name, value in wanted.items() if name not in url.query}
    if driver == "psycopg":
        chosen["prepare_threshold"] = None  # until the connection is known to be direct
    return chosen
