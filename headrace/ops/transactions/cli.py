"""``headrace transactions list|abort|settle``.

Exit codes: 0 done; 1 failed, the brokers refused, or readers are held back still; 2 the
configuration or the command line cannot be used, or there is no such transaction; 3 a running
member owns it, and nothing was done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.core.options import ConfigFile, command_group

if TYPE_CHECKING:
    from collections.abc import Callable

app = command_group(
    help="List transactions that a channel's readers wait for, and end those that hang.",
)

_Channel = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The channel, if the configuration has several."),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@app.command(name="list")
def list_(
    config: ConfigFile,
    channel: _Channel = None,
    *,
    every: Annotated[
        bool, typer.Option("--all", help="Include ids whose last transaction has ended.")
    ] = False,
    json: _Json = False,
) -> None:
    """List open transactions of a channel's producers, and of others on its topics.

    Shows for each since when it is open, its owner and its host, and the partitions that it holds
    back: of topics that the channel reads and writes, and of its group's offsets.
    """
    from headrace.ops.transactions import commands  # noqa: PLC0415 - takes a second to import

    _run(
        config,
        lambda loaded: commands.list_transactions(loaded, channel, every=every, as_json=json),
    )


@app.command()
def abort(
    config: ConfigFile,
    transactional_id: Annotated[
        str, typer.Argument(metavar="ID", help="The transactional id, as list shows it.")
    ],
    channel: _Channel = None,
    *,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Do it even if a running member or another program owns it, or no transaction is "
            "open.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: _Json = False,
) -> None:
    """Fence a producer and abort its open transaction.

    The brokers refuse that producer from then on. Partitions that are still held back are named,
    with exit code 1.
    """
    from headrace.ops.transactions import commands  # noqa: PLC0415 - takes a second to import

    if json and not yes:
        raise typer.BadParameter("takes --yes: there is no prompt", param_hint="--json")
    _run(
        config,
        lambda loaded: commands.abort(
            loaded, channel, transactional_id, force=force, yes=yes, as_json=json
        ),
    )


@app.command()
def settle(
    config: ConfigFile,
    transactional_id: Annotated[
        str, typer.Argument(metavar="ID", help="The transactional id, as list shows it.")
    ],
    channel: _Channel = None,
    *,
    decision: Annotated[
        Literal["commit", "abort"] | None,
        typer.Option("--as", help="How to finish it, if the brokers' log no longer says."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Do it even if a running member or another program owns it."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: _Json = False,
) -> None:
    """Finish a transaction that was decided, and whose markers are missing in some partitions.

    A commit is finished by a commit and an abort by an abort, in each partition that would be held
    back forever. Its producer is fenced. Without --as the brokers' log has to say which it was.
    """
    from headrace.kafka.transaction_log import Decision  # noqa: PLC0415 - takes a second to import
    from headrace.ops.transactions import commands  # noqa: PLC0415 - takes a second to import

    if json and not yes:
        raise typer.BadParameter("takes --yes: there is no prompt", param_hint="--json")
    _run(
        config,
        lambda loaded: commands.settle(
            loaded,
            channel,
            transactional_id,
            decision=None if decision is None else Decision(decision),
            force=force,
            yes=yes,
            as_json=json,
        ),
    )


def _run(config: Any, command: Callable[[Any], None]) -> None:
    from headrace.ops.offsets.commands import guarded  # noqa: PLC0415 - takes a second to import

    raise typer.Exit(guarded(config, command))
