"""What people type because another tool calls it so: synonyms that work, and hints for those that cannot.

`COMMANDS` and `OPTIONS` are the whole list of synonyms, which `--help` does not show. `HINTS` are options of other
tools that mean something else here. Every command is a `Command`, and every group a `Group`, of this module.

Invariants
    a name that a command has itself is never taken for a synonym
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Final

import click

COMMANDS: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "pub": (("produce",),),
    "publish": (("produce",),),
    "send": (("produce",),),
    "sub": (("consume",),),
    "subscribe": (("consume",),),
    "tail": (("consume",),),
    "ls": (("list",), ("topics", "list")),
    "rm": (("delete",), ("remove",)),
    "del": (("delete",), ("remove",)),
    "drop": (("delete",), ("remove",)),
    "show": (("describe",), ("get",)),
    "info": (("describe",), ("get",)),
    "new": (("create",), ("add",)),
    "add": (("create",),),
    "groups": (("subscriptions",),),
    "group": (("subscriptions",),),
    "subs": (("subscriptions",),),
    "subscription": (("subscriptions",),),
    "topic": (("topics",),),
    "namespace": (("namespaces",),),
    "ns": (("namespaces",),),
    "schema": (("schemas",),),
    "broker": (("brokers",),),
    "start": (("serve",),),
    "server": (("serve",),),
    "profiles": (("profile",),),
    "tables": (("table",),),
    "pipelines": (("pipeline",),),
}
"""By synonym: the words it may stand for. The first that the group has is meant."""

OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    "--count": ("-n", "-c", "--max-messages"),
    "--limit": ("-n",),
    "--from": ("-o", "--offset", "--start"),
    "--message": ("--value", "--data", "--payload"),
    "--attribute": ("-H", "--header"),
    "--json-lines": ("-J",),
    "--exit": ("--end",),
}
"""By option: its synonyms."""

HINTS: Final[dict[str, tuple[str, str]]] = {
    name: (option, hint)
    for names, option, hint in (
        (
            "-g -G --group --group-id --consumer-group --queue",
            "--subscription",
            "a consumer group is a subscription here: -s NAME",
        ),
        ("--from-beginning --beginning --all", "--from", "write --from earliest"),
        ("--follow", "--from", "consume waits for more by itself; -e ends it"),
        (
            "-b --bootstrap-server --bootstrap-servers --broker-list --server --host",
            "--url",
            "write --url URL",
        ),
        ("-t --topic", "topic", "the topic is an argument: write its name alone, such as /default/orders"),
        ("--replication-factor --replicas", "--ack-level", "--ack-level stored keeps messages in the object store"),
    )
    for name in names.split()
}
"""By option of another tool: the parameter that a command must have for the hint, and the hint."""

CONNECTION: Final = frozenset(
    ("url", "profile", "token_file", "tls_ca_file", "tls_cert_file", "tls_key_file", "tls_insecure_skip_verify")
)
"""The parameters that every command has which talks to a broker; `danube --help` explains them."""


class Command(click.Command):
    """A command that takes the synonyms of its options, and hints at what others mean."""

    def make_parser(self, ctx: click.Context) -> Any:
        parser = super().make_parser(ctx)
        for synonym in self._synonyms(ctx):
            synonym.add_to_parser(parser, ctx)
        return parser

    def _synonyms(self, ctx: click.Context) -> Iterator[click.Parameter]:
        """Yield a copy of each option that has synonyms, which has these names only."""
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        taken = {name for one in options for name in one.opts + one.secondary_opts}
        for option in options:
            names = [name for own in option.opts for name in OPTIONS.get(own, ()) if name not in taken]
            if names:
                taken.update(names)
                synonym = copy.copy(option)
                synonym.opts, synonym.secondary_opts = names, []
                yield synonym

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hint = self._hint(error.option_name, ctx)
            if not hint:
                raise
            raise click.UsageError(f"there is no option {error.option_name}: {hint}", ctx) from None

    def _hint(self, name: str, ctx: click.Context) -> str:
        """Return what an option that the command does not have means here; empty: nothing is known."""
        params = self.get_params(ctx)
        known = {name for one in params for name in (*one.opts, one.name)}
        needed, hint = HINTS.get(name, ("", ""))
        if needed in known:
            return hint
        policy = _policy(name)
        if not policy or "topic" not in known:
            return ""
        how = f"--set {policy}=VALUE" if "--set" in known else f"danube topics policies TOPIC --set {policy}=VALUE"
        return f"{policy} is a policy: {how}"

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options; those about the connection take one line."""
        params = self.get_params(ctx)
        is_client = {"url", "profile"} <= {one.name for one in params} and ctx.parent is not None
        shown = [one for one in params if not (is_client and one.name in CONNECTION) and isinstance(one, click.Option)]
        records = [record for one in shown if (record := one.get_help_record(ctx)) is not None]
        if is_client:
            records.insert(len(records) - 1, ("--url URL, --profile NAME", "The broker; 'danube --help' has more."))
        with formatter.section("Options"):
            formatter.write_dl(records)


def _policy(option: str) -> str:
    """Return the policy that an option such as --retention names, or begins to name; empty: none."""
    from pydanube.model.policies import FIELDS
    from pydanube.model.text import nearest

    name = option.lstrip("-").replace("-", "_")
    if len(name) < 3:
        return ""
    begun = [one for one in FIELDS if one == name or one.startswith(f"{name}_")]
    return begun[0] if begun else nearest(name, FIELDS, 0.85)


class Group(Command, click.Group):
    """A group whose commands have synonyms, and are of these classes themselves."""

    command_class = Command
    group_class = type

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not ctx.resilient_parsing:
            names = self.list_commands(ctx)
            if args[0] not in names:
                meant = next((words for words in COMMANDS.get(args[0], ()) if words[0] in names), None)
                if meant is not None:
                    args = [*meant, *args[1:]]
                elif not args[0].startswith("-"):
                    from pydanube.model.text import nearest

                    near = nearest(args[0], names)
                    whole = f"{ctx.command_path} {near}"
                    hint = f"did you mean '{whole}'?" if near else f"'{ctx.command_path} --help' lists them"
                    raise click.UsageError(f"there is no command {args[0]!r}: {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)
